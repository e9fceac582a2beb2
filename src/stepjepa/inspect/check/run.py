"""`check`: read a data set, count what is in it and what a model will see of it, and warn (``stepjepa check``)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stepjepa.config.option import Names, Unread, check_fields, option, options_of, unread_options
from stepjepa.data.options import ColumnOptions, StepsOptions
from stepjepa.data.sources import RowSource
from stepjepa.inspect.check.quality import DataWarning, text_warnings, token_warnings
from stepjepa.inspect.check.reader import TextReader
from stepjepa.inspect.check.texts import TextStatistics
from stepjepa.inspect.check.tokens import TokenStatistics, read_tokens
from stepjepa.inspect.rows import method_from, taken, tokenizer_of
from stepjepa.objectives.base import built_in, find_objective
from stepjepa.training.options import ExampleOptions, without_effect
from stepjepa.utils.text import folded, printable, wrapped


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
        "Tokenizer: a Hub id, a local folder, or a preset (micro, tiny, mini: trained on the file). With one, the report "
        "says what a model will see of the file under the options of training.",
        "check",
    )
    seed: int = option(42, "Seed of what is sampled every epoch.", "check", needs={"model_name": True})
    num_proc: int = option(1, "Processes that count and tokenise rows.", "check", at_least=1)
    show: int = option(1, "How many rows to show.", "check", at_least=0)
    json: bool = option(False, "Print the report as one JSON object.", "check")


@dataclass
class CheckOptions(ExampleOptions, FileOptions):
    """All options of ``stepjepa check``; those of training mean what they mean there."""


_NAME = Names(CheckOptions)
# The options that the text statistics read, without a tokenizer and whatever the objective is.
_READ = {_NAME.objective, _NAME.system_prompt, _NAME.strict_data, *options_of(StepsOptions), *options_of(ColumnOptions)}


@dataclass(frozen=True)
class CheckReport:
    """What `check` returns; ``print`` it.

    Attributes:
        texts: statistics of the text.
        tokens: statistics as a model will see the data set; None without a tokenizer.
        warnings: data quality warnings.
        notes: what there is to say about the options.
    """

    texts: TextStatistics
    tokens: TokenStatistics | None
    warnings: list[DataWarning]
    notes: list[str]

    def __str__(self) -> str:
        lines = self.texts.lines()
        if self.tokens is not None:
            lines += ["", *self.tokens.lines()]
        lines += ["", *warning_lines(self.warnings), *(f"Note: {note}" for note in self.notes)]
        return printable("\n".join(folded(lines)))

    def to_dict(self) -> dict[str, Any]:
        """A plain record for JSON."""
        record = self.texts.to_dict()
        if self.tokens is not None:
            record["feeding"] = self.tokens.to_dict()
        record["warnings"] = [asdict(warning) for warning in self.warnings]
        record["notes"] = self.notes
        return record


def check(data: object, tokenizer: str | os.PathLike[str] | None = None, **options: Any) -> CheckReport:
    """Read a data set and report its messages, steps, unusable rows and warnings; with a tokenizer also what a model sees.

    Args:
        data: a file, a Hub data set's name, a `datasets.Dataset`, or a list of rows.
        tokenizer: the Hub id or folder of a tokenizer, or a preset, whose tokenizer is trained on `data`.
        options: those of ``stepjepa check`` by name (`FileOptions`; ``eval_file`` may be whatever `data` may be), and the
            method's, as for `JEPAConfig`. Without ``objective``, plain text is read as for ``split``.

    Raises:
        ConfigError: an option that cannot be used, or a tokenizer or template that cannot.
        DataError: the data cannot be read, no row can be used, or with ``strict_data`` the first row that cannot.

    Examples:
        >>> print(check("train.jsonl", "mini", objective="step_jepa"))
    """
    name = None if tokenizer is None else str(tokenizer)
    # The file and the tokenizer are arguments, and the result has both forms.
    own = FileOptions(model_name=name, **taken(FileOptions, options, _NAME.file, _NAME.model_name, _NAME.json))
    check_fields(own)
    method, asked = method_from(options), _NAME.objective in options
    needs_steps = find_objective(method.objective)(method).needs_steps or not asked
    rows = RowSource(data, own.dataset_split)
    others = None if own.eval_file is None else RowSource(own.eval_file, own.eval_split)
    reader, tokens = TextReader(rows, method, own.show), None
    if name is None:
        for _ in reader.read(own.num_proc):
            pass
        notes = _notes_without_tokenizer(own, options)
    else:
        if reader.texts.plain_text and not asked:
            takes_text = (label for label, cls in built_in().items() if cls.takes_text and cls.makes_pairs)
            method = method_from({**options, _NAME.objective: next(takes_text)})
        tokens = read_tokens(reader, tokenizer_of(rows, name, method), method, name, own.seed, own.num_proc)
        notes = [str(unread) for unread in without_effect(method, set(options) - _READ)]
    if others is not None:
        reader.compare(others)
    warnings = text_warnings(reader.texts, needs_steps)
    if tokens is not None:
        warnings += token_warnings(tokens)
    return CheckReport(reader.texts, tokens, warnings, notes)


def _notes_without_tokenizer(own: FileOptions, options: dict[str, Any]) -> list[str]:
    """Which of the options wait for a tokenizer, and what one adds."""
    changed = [name for name, known in options_of(FileOptions).items() if getattr(own, name) != known.default]
    unread = [Unread(name, f"without --{_NAME.model_name}") for name in options if name not in _READ]
    notes = sorted(str(one) for one in [*unread, *unread_options(own, changed)])
    return [*notes, f"--{_NAME.model_name} NAME adds what a model will see: pairs, truncation, tokens by kind"]


def warning_lines(warnings: Sequence[DataWarning], width: int = 100) -> list[str]:
    """The warnings in lines of `width` characters: what was found and what to do about it."""
    lines = [f"Warnings: {len(warnings)}" if warnings else "Warnings: none"]
    for number, warning in enumerate(warnings, 1):
        for mark, text in ((f"{number}.", warning.text), ("", warning.advice)):
            lines += wrapped(f"{text[:1].upper()}{text[1:]}.", width, f"{mark:>4} ", " " * 5)
    return lines
