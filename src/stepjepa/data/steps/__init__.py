r"""The steps of an answer, and of a row that holds them itself.

A splitter's `spans` cover a text in order and without overlap, the separator belongs to the step that it ends, and a text
without a boundary is one step. Thinking blocks, code fences, display maths and tables are never cut. Steps are found in the
answer's text, never in token ids, because tokenizers merge ``.\n\n`` into one token.

A row may hold its steps in a column (as `stepjepa prepare` writes it): a list of texts that are in its last answer one after
the other. What precedes the first one belongs to it, what follows a step to that step, so that spans cover the answer.
`TOTAL_COLUMN` may say how many steps that answer has; a number that is not the one found is counted.
"""

from stepjepa.data.blocks import CharSpan, text_of
from stepjepa.data.columns import TOTAL_COLUMN
from stepjepa.data.options import STEPS_COLUMN
from stepjepa.data.steps.rows import (
    LISTED,
    RowSteps,
    StepRules,
    join_steps,
    names_steps,
    rules_for,
    spans_of_steps,
    steps_of,
)
from stepjepa.data.steps.splitters import (
    STYLES,
    StepSplitter,
    make_splitter,
    style_and_spans,
)

__all__ = [
    "LISTED",
    "STEPS_COLUMN",
    "STYLES",
    "TOTAL_COLUMN",
    "CharSpan",
    "RowSteps",
    "StepRules",
    "StepSplitter",
    "join_steps",
    "make_splitter",
    "names_steps",
    "rules_for",
    "spans_of_steps",
    "steps_of",
    "style_and_spans",
    "text_of",
]
