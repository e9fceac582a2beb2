"""``stepjepa check``: read a data file and say what is in it and whether its answers have steps."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from stepjepa.cli.options import Option
from stepjepa.cli.parser import StrictParser
from stepjepa.cli.values import BadValue
from stepjepa.data.encode import find_splitter
from stepjepa.data.format_check import check_format
from stepjepa.data.sources import RowSource
from stepjepa.data.steps import SPLITTERS
from stepjepa.errors import ConfigError
from stepjepa.training.options import option

_SWITCH_WORDS = {"true", "false", "yes", "no", "on", "off", "1", "0"}


@dataclass
class CheckOptions:
    """Options of ``stepjepa check``."""

    file: str | None = option(None, "The data file; usually written without --file.", "check")
    step_splitter: str = option(
        "auto",
        "How steps are found in an answer; auto is what training takes for this file.",
        "check",
        choices=("auto", *SPLITTERS),
    )
    step_separator: str = option("\\n\\n", "The string between steps for step_splitter=separator.", "check")
    show: int = option(1, "How many rows to show.", "check")
    strict_data: bool = option(False, "Stop at the first row that cannot be used, instead of counting it.", "check")
    json: bool = option(False, "Print the report as one JSON object.", "check")


def run(argv: list[str]) -> int:
    """Check a file; exit status 0 where it can be used."""
    parser = StrictParser(
        (CheckOptions,),
        prog="stepjepa check FILE",
        description="Read a data file and report what is in it: messages, roles, steps, rows that cannot be used.",
        epilog="example: stepjepa check train.jsonl --step_splitter lines --show 2",
    )
    options: CheckOptions
    (options,) = parser.parse(file_argument(parser, argv))
    source = needed_file(options.file, "check")
    splitter = options.step_splitter
    if splitter == "auto" and "step_separator" in parser.explicit:
        splitter = "separator"
    if splitter == "auto":
        splitter = find_splitter(RowSource(source), options.step_separator)[0]
    report = check_format(source, splitter, options.step_separator, show=options.show, strict=options.strict_data)
    if options.json:
        print_text(json.dumps(report.to_dict(), indent=2))
    else:
        print_text("\n".join(report.lines()))
    return 0


def file_argument(parser: StrictParser, argv: Sequence[str]) -> list[str]:
    """`argv` with its first free word (one that is no flag and no flag's value) as ``--file WORD``."""
    waiting = False  # for the value of the flag before
    switch = False  # that flag may stand without a value
    many = None  # that flag takes any number of values
    for index, word in enumerate(argv):
        taken = waiting and (not switch or word.lower() in _SWITCH_WORDS)
        if many is not None and not waiting:
            taken = _fits(many, word)
        if word.startswith("--"):
            known = parser.options.get(word[2:].replace("-", "_"))
            waiting = (known is not None or word == "--config") and "=" not in word
            switch = known is not None and known.boolean
            many = known if known is not None and known.many else None
        elif taken or (word.startswith("-") and len(word) > 1):
            waiting = False
        else:
            return [*argv[:index], *argv[index + 1 :], f"--file={word}"]
    return list(argv)


def _fits(option: Option, word: str) -> bool:
    """Whether a word can be one more value of an option with several."""
    try:
        option.read([word])
    except BadValue:
        return False
    return True


def needed_file(name: str | None, command: str) -> str:
    """The file's name.

    Raises:
        ConfigError: none was given.
    """
    if not name:
        raise ConfigError(f"no data file given; write: stepjepa {command} FILE")
    return name


def print_text(text: str) -> None:
    """Print `text`; what standard output's encoding cannot hold is written as escapes."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))
