"""`check`: read a data set, count what is in it and what a model will see of it, and warn."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stepjepa.data.sources import PairColumns, RowSource
from stepjepa.errors import ConfigError
from stepjepa.inspect.check.texts import TextStatistics, read_texts
from stepjepa.inspect.check.tokens import TokenStatistics, read_tokens
from stepjepa.inspect.check.warnings import DataWarning, text_warnings, token_warnings, warning_lines
from stepjepa.inspect.rows import tokenizer_of
from stepjepa.objectives.base import find_objective
from stepjepa.objectives.split import Split
from stepjepa.training.options import JEPAOptions, without_effect
from stepjepa.utils.text import printable

_WIDTH = 100
# The options that the text statistics read, without a tokenizer and whatever the objective is.
_READ = frozenset(
    "objective step_splitter step_separator steps_column source_column target_column choice_column system_prompt "
    "strict_data".split()
)


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
            lines += ["", *self.tokens.lines(self.texts.rows_skipped)]
        lines += ["", *warning_lines(self.warnings, _WIDTH), *(f"Note: {note}" for note in self.notes)]
        return printable("\n".join(folded(lines)))

    def to_dict(self) -> dict[str, Any]:
        """A plain record for JSON."""
        tokens = {} if self.tokens is None else {"feeding": self.tokens.to_dict()}
        warnings = [asdict(warning) for warning in self.warnings]
        return {**self.texts.to_dict(), **tokens, "warnings": warnings, "notes": self.notes}


def check(
    data: Any,
    tokenizer: str | os.PathLike[str] | None = None,
    *,
    dataset_split: str = "train",
    eval_file: Any = None,
    eval_split: str = "test",
    per_device_train_batch_size: int = 8,
    seed: int = 42,
    show: int = 1,
    **options: Any,
) -> CheckReport:
    """Read a data set and report its messages, steps, unusable rows and warnings; with a tokenizer also what a model sees.

    Args:
        data: a file, a Hub data set's name, a `datasets.Dataset`, or a list of rows; `dataset_split` of a Hub data set.
        tokenizer: the Hub id or folder of a tokenizer, or a preset, whose tokenizer is trained on `data`.
        eval_file: a second data set, whose questions are looked for in `data`; `eval_split` of a Hub data set.
        per_device_train_batch_size: examples of a batch, for the padding.
        seed: of the rows that are sampled.
        show: how many rows to show.
        options: the method's, as for `JEPAConfig`. Without ``objective``, plain text is read as for ``split``.

    Raises:
        ConfigError: an option that cannot be used, or a tokenizer or template that cannot.
        DataError: the data cannot be read, no row can be used, or with ``strict_data`` the first row that cannot.

    Examples:
        >>> print(check("train.jsonl", "mini", objective="step_jepa"))
    """
    method = JEPAOptions(**options)
    method.check()
    if per_device_train_batch_size < 1:
        raise ConfigError(f"per_device_train_batch_size is {per_device_train_batch_size}; it must be at least 1")
    rows, columns = RowSource(data, dataset_split), None
    if method.source_column and method.target_column:
        columns = PairColumns(method.source_column, method.target_column, method.choice_column)
    texts = read_texts(
        rows,
        method.step_splitter,
        method.step_separator,
        show=show,
        strict=method.strict_data,
        columns=columns,
        steps_column=method.steps_column,
        system_prompt=method.system_prompt,
        eval_rows=None if eval_file is None else RowSource(eval_file, eval_split),
    )
    asked = "objective" in options
    found = text_warnings(texts, steps=find_objective(method.objective).needs_steps or not asked)
    if tokenizer is None:
        names = set(options) - _READ
        names |= {"per_device_train_batch_size"} if per_device_train_batch_size != 8 else set()
        names |= {"seed"} if seed != 42 else set()
        notes = [f"--{name} has no effect without --model_name" for name in sorted(names)]
        notes.append("--model_name NAME adds what a model will see: pairs, truncation, tokens by kind, padding")
        return CheckReport(texts, None, found, notes)
    if texts.plain_text and not asked:
        method = JEPAOptions(**options, objective=Split.name)
        method.check()
    loaded = tokenizer_of(rows, str(tokenizer), method)
    tokens = read_tokens(
        rows, loaded, str(tokenizer), method, count=texts.rows_read, batch_size=per_device_train_batch_size, seed=seed
    )
    notes = [str(unread) for unread in without_effect(method, set(options) - _READ)]
    return CheckReport(texts, tokens, [*found, *token_warnings(tokens)], notes)


def folded(lines: Sequence[str]) -> list[str]:
    """`lines` with those that are longer than a page is wide broken, indented further where they continue."""
    out = []
    for line in lines:
        if len(line) <= _WIDTH or len(line.split()) < 4:
            out.append(line)
            continue
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        out += textwrap.wrap(line, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return out
