"""stepjepa inspect FILE

Show one row as the model sees it in training: tokens, views, predictors, and who sees whom. The options of training
mean what they mean for stepjepa train; --predictors 1 2 3 shows several K side by side.

example: stepjepa inspect train.jsonl --row 3 --step_jepa --step_pairs all --predictors 2
"""

from __future__ import annotations

from dataclasses import dataclass

from stepjepa.api import inspect
from stepjepa.cli.check import needed_file
from stepjepa.config.option import option
from stepjepa.config.parser import StrictParser
from stepjepa.config.spellings import published
from stepjepa.training.options import ExampleOptions
from stepjepa.utils.terminal import print_drawn


@dataclass
class RowOptions:
    """What ``stepjepa inspect`` shows."""

    file: str | None = option(None, "The data file; usually written without --file.", "inspect")
    row: int = option(0, "Which row, counted from 0.", "inspect")
    rows_packed: int = option(
        1, "How many examples from --row on are packed as one batch, in the order of the file.", "inspect"
    )
    model_name: str = option(
        "mini", "Tokenizer: a Hub id, a local folder, or a preset (tiny, mini: trained on the file).", "inspect"
    )
    seed: int = option(42, "Seed of what is sampled every epoch; epoch 0 is shown.", "inspect")
    png: str | None = option(None, "Write the picture of the rows to this PNG file (extra analysis).", "inspect")
    html: str | None = option(
        None, "Write a page to this file that shows, token by token, who sees whom; it needs no network.", "inspect"
    )
    run_model: bool | None = option(
        None,
        "Run the model of --model_name for the page: cosine of each pair, LM loss of each token, attention. Default: where "
        "it is a local folder. A preset's weights are random.",
        "inspect",
    )
    attention_layers: list[int] | None = option(
        None, "Layers, from 1 on, whose attention the page holds. Default: as many as fit.", "inspect"
    )
    overwrite: bool = option(False, "Replace existing files.", "inspect", aliases=("overwrite_output_dir",))


@dataclass
class InspectOptions(ExampleOptions, RowOptions):
    """All options of ``stepjepa inspect``; those of training mean what they mean there."""

    predictors: int | list[int] | None = option(  # type: ignore[assignment]
        None,
        "K, learned predictor tokens after a source view; several numbers are shown side by side. Default: 2 for step_jepa, "
        "1 for split, else 0.",
        "method",
    )


def run(argv: list[str]) -> int:
    """Draw a row; exit status 0, also for one without a pair."""
    parser = StrictParser((InspectOptions,), __doc__, aliases=published(InspectOptions), positional=("file",))
    values = parser.values(argv)
    file, tokenizer = needed_file(values.pop("file", None), "inspect"), values.pop("model_name", RowOptions.model_name)
    print_drawn(str(inspect(file, tokenizer, **values)))
    return 0
