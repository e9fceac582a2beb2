"""stepjepa inspect FILE

Show one row as the model sees it in training: tokens, views, predictors, and who sees whom. The options of training
mean what they mean for stepjepa train; --predictors 1 2 3 shows several K side by side.

example: stepjepa inspect train.jsonl --row 3 --step_jepa --step_pairs all --predictors 2
"""

from __future__ import annotations

from stepjepa.api import inspect
from stepjepa.cli import needed_file
from stepjepa.config.parser import StrictParser
from stepjepa.config.spellings import published
from stepjepa.inspect.view import InspectOptions
from stepjepa.utils.terminal import print_drawn


def run(argv: list[str]) -> int:
    """Draw a row; exit status 0, also for one without a pair."""
    parser = StrictParser((InspectOptions,), __doc__, aliases=published(InspectOptions), positional=("file",))
    values = parser.values(argv)
    file = needed_file(values.pop("file", None), "inspect")
    print_drawn(str(inspect(file, values.pop("model_name", InspectOptions.model_name), **values)))
    return 0
