"""The steps of a row: those that it holds itself, else those that a splitter finds in its answers.

`steps_of` is the one place that answers what the steps of a row are; `rules_for` decides for a data set how it answers.
"""

from stepjepa.data.steps.splitters import LISTED as LISTED
from stepjepa.data.steps.splitters import STEPS_COLUMN as STEPS_COLUMN
from stepjepa.data.steps.splitters import STYLES as STYLES
from stepjepa.data.steps.splitters import TOTAL_COLUMN as TOTAL_COLUMN
from stepjepa.data.steps.splitters import RowSteps as RowSteps
from stepjepa.data.steps.splitters import StepRules as StepRules
from stepjepa.data.steps.splitters import StepSplitter as StepSplitter
from stepjepa.data.steps.splitters import join_steps as join_steps
from stepjepa.data.steps.splitters import make_splitter as make_splitter
from stepjepa.data.steps.splitters import names_steps as names_steps
from stepjepa.data.steps.splitters import rules_for as rules_for
from stepjepa.data.steps.splitters import spans_of_steps as spans_of_steps
from stepjepa.data.steps.splitters import steps_of as steps_of
from stepjepa.data.steps.splitters import style_and_spans as style_and_spans
from stepjepa.data.steps.text import CharSpan as CharSpan
from stepjepa.data.steps.text import Text as Text
