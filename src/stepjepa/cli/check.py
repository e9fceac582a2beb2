"""stepjepa check FILE

Check roles, texts and steps of a data file, and list unusable rows and warnings. With --model_name also report what a
model will see of it: pairs, truncation, tokens by kind, padding.

example: stepjepa check train.jsonl --model_name mini --step_jepa --eval_file test.jsonl
"""

from __future__ import annotations

from dataclasses import dataclass

from stepjepa.api import check
from stepjepa.config.option import option
from stepjepa.config.parser import StrictParser
from stepjepa.config.spellings import published
from stepjepa.errors import ConfigError
from stepjepa.training.options import ExampleOptions
from stepjepa.utils.terminal import print_drawn, print_json


@dataclass
class FileOptions:
    """What ``stepjepa check`` reads and shows."""

    file: str | None = option(None, "The data file; usually written without --file.", "check")
    dataset_split: str = option("train", "Split of a Hub data set.", "check")
    eval_file: str | None = option(
        None, "A second file or data set, whose questions are looked for in the first.", "check"
    )
    eval_split: str = option("test", "Split of a Hub data set given as eval_file.", "check")
    model_name: str | None = option(
        None,
        "Tokenizer: a Hub id, a local folder, or a preset (tiny, mini: trained on the file). With one, the report says what "
        "a model will see of the file under the options of training.",
        "check",
    )
    per_device_train_batch_size: int = option(8, "Examples of a batch, for the padding.", "check")
    seed: int = option(42, "Seed of the sampled rows.", "check")
    show: int = option(1, "How many rows to show.", "check")
    json: bool = option(False, "Print the report as one JSON object.", "check")


@dataclass
class CheckOptions(ExampleOptions, FileOptions):
    """All options of ``stepjepa check``; those of training mean what they mean there."""


def run(argv: list[str]) -> int:
    """Check a file; exit status 0 where it can be used."""
    parser = StrictParser((CheckOptions,), __doc__, aliases=published(CheckOptions), positional=("file",))
    values = parser.values(argv)
    as_json = values.pop("json", False)
    report = check(needed_file(values.pop("file", None), "check"), values.pop("model_name", None), **values)
    if as_json:
        print_json(report.to_dict())
    else:
        print_drawn(str(report))
    return 0


def needed_file(name: str | None, command: str) -> str:
    """The file's name.

    Raises:
        ConfigError: none was given.
    """
    if not name:
        raise ConfigError(f"no data file given; write: stepjepa {command} FILE")
    return name
