"""Raw rows to chat rows with steps, for files of any size.

Rows stream from the source in blocks through a `Converter`, in this process or in several, and back in their order. Here
each is counted once and written. What goes where depends on the row and on those before it alone, so any number of
processes writes the same bytes. Every file appears complete or not at all.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from stepjepa.config.option import Names
from stepjepa.data.prepare.options import PrepareOptions
from stepjepa.data.prepare.rows import KEY_BITS, LINE_BYTES, Converter, Dropped, Kept, RawRow, parse, recognise
from stepjepa.data.sources import RowSource, csv_rows, reading
from stepjepa.errors import ConfigError, DataError, RowError, attempted, no_rows
from stepjepa.utils.files import read_lines, replacing, unchanged, write_json
from stepjepa.utils.parallel import mapped
from stepjepa.utils.text import counted, escaped

_NAME = Names(PrepareOptions)
# What was asked for, not a fault of the row: strict_data lets these pass.
_FILTERS = {"too_few_steps", "too_many_steps", "wrong_answer", "duplicate"}
_BLOCK_ROWS, _BLOCK_BYTES = 500, 2**20  # that are prepared together
_RECOGNISED_BY = 100  # rows
_EXAMPLES = 20  # rows listed for a reason


@dataclass
class PrepareResult:
    """What `prepare` did, every row counted once as kept or dropped; ``str()`` of it is what the command prints.

    Attributes:
        source, format, why: what was read, as which format, and why as this one.
        min_step_length: the least length of a step.
        system_prompt: the system message of chats without one.
        rows_read, rows_kept: rows; blank lines are none.
        rows_dropped: reason -> rows.
        examples: reason -> the first such rows: ``place``, ``what`` is wrong, ``text`` it begins with.
        step_counts: steps -> kept rows.
        short_pieces: pieces of kept rows that were too short to be steps.
        rows_prompted: kept rows with a system message; the default prompt asks for a box, and answers without one lack it.
        files: output file -> rows in it.
        stopped_early: whether max_examples ended the reading.
        next_command: the command that trains on the files; empty where no row is left to train on.
    """

    source: str
    format: str
    why: str
    min_step_length: int = 1
    system_prompt: str | None = None
    rows_read: int = 0
    rows_kept: int = 0
    rows_dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    step_counts: Counter[int] = field(default_factory=Counter)
    short_pieces: int = 0
    rows_prompted: int = 0
    files: dict[str, int] = field(default_factory=dict)
    stopped_early: bool = False
    next_command: str = ""

    def keep(self, row: Kept) -> None:
        """Count a row that is written."""
        self.rows_read += 1
        self.rows_kept += 1
        self.step_counts[row.steps] += 1
        self.short_pieces += row.short
        self.rows_prompted += row.prompted

    def drop(self, row: Dropped, place: str) -> None:
        """Count a row that is left out."""
        self.rows_read += 1
        self.rows_dropped[row.reason] += 1
        examples = self.examples.setdefault(row.reason, [])
        if len(examples) < _EXAMPLES:
            examples.append({"place": place, "what": row.what, "text": escaped(row.text)})

    def __str__(self) -> str:
        following = [f"Next: {self.next_command}"] if self.next_command else []
        return "\n".join([*self.lines(), *following])

    def lines(self) -> list[str]:
        """The counts, one fact a line. What comes from the file is on one line and printable."""
        dropped = sum(self.rows_dropped.values())
        lines = [
            f"Prepared: {escaped(self.source)}",
            f"  Format: {self.format} ({escaped(self.why)})",
            f"  Rows: {self.rows_read:,} read, {self.rows_kept:,} kept, {dropped:,} dropped",
            *(f"    dropped {reason}" for reason in self.dropped()),
        ]
        if self.stopped_early:
            lines.append(f"  Stopped at {_NAME.max_examples}; the rows after it were not read")
        if self.rows_kept:
            steps = ", ".join(f"{steps} in {rows:,}" for steps, rows in sorted(self.step_counts.items()))
            lines.append(f"  Steps a row: {steps}")
        if self.short_pieces:
            option = f"--{_NAME.min_step_length} {self.min_step_length}"
            lines.append(f"  Too short for a step: {self.short_pieces:,} pieces ({option}; 1 keeps each as a step)")
        if self.system_prompt:
            rows = f"in {self.rows_prompted:,} of {self.rows_kept:,} rows (--{_NAME.system_prompt} TEXT, or none)"
            lines.append(f"  System prompt: {rows}: {escaped(self.system_prompt)}")
        return lines + [f"  {escaped(name)}: {counted(rows, 'row')}" for name, rows in self.files.items()]

    def dropped(self) -> list[str]:
        """Number of rows, reason and first example of each kind of row that was dropped."""
        lines: list[str] = []
        for reason, rows in self.rows_dropped.most_common():
            first = self.examples[reason][0]
            example = f"{escaped(first['place'])}: {escaped(first['what'])}; {first['text'][:70]}"
            lines.append(f"{rows:,}: {reason} (first: {example})")
        return lines


def prepare(options: PrepareOptions, source: object = None) -> PrepareResult:
    """Write a source of raw rows as chat rows with steps to ``options.output_file`` and its validation file.

    Args:
        source: the rows, in place of ``options.file``: a file (JSONL, CSV, Parquet), a Hub data set's name, or
            anything else that `RowSource` takes.

    Returns:
        The counts, which are in ``OUT.report.json`` too.

    Raises:
        ConfigError: an option that cannot be used, or output files that exist.
        DataError: the source cannot be read, no row of it can be kept, or the output cannot be written; with ``strict_data``
            the first row that is dropped for a fault.
    """
    options.check()
    raw = _RawRows(options.file if source is None else source, options)
    form = recognise(raw.first_rows(), options, raw.name)
    train, valid, report = _output_files(options, raw.file)
    converter = Converter(form, options)
    result = PrepareResult(raw.name, form.name, form.why, converter.least, options.system_prompt)
    targets = [train, valid] if options.valid_ratio else [train]
    try:
        train.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            names = [stack.enter_context(replacing(target)) for target in targets]
            files = [stack.enter_context(open(name, "wb", buffering=_BLOCK_BYTES)) for name in names]
            counts = [0] * len(files)
            stack.enter_context(raw.unchanged())
            for kept in _kept(raw, converter, options, result):
                target = int(kept.key < options.valid_ratio * 2**KEY_BITS)
                files[target].write(kept.line)
                counts[target] += 1
            if not result.rows_kept:
                reasons = "; ".join(result.dropped())
                raise DataError(f"{raw.name}: none of {result.rows_read:,} rows can be kept; dropped {reasons}")
        result.files = {str(target): rows for target, rows in zip(targets, counts, strict=True)}
        result.next_command = _next_command(result, train, valid)
        record = {**vars(result), "job": {"input": {"name": raw.name}, "options": vars(options)}}
        del record["next_command"]
        write_json(report, record)
    except OSError as error:
        raise DataError(f"{error.filename or train}: cannot be written ({error.strerror or error})") from None
    return result


def _kept(raw: _RawRows, converter: Converter, options: PrepareOptions, result: PrepareResult) -> Iterator[Kept]:
    """The rows to write, until the source or ``max_examples`` ends them; every row is counted."""
    seen = set[int]()
    for outcomes in mapped(converter, raw.blocks(), options.num_proc, _NAME.num_proc):
        for outcome in outcomes:
            if isinstance(outcome, Kept) and options.dedup and outcome.key in seen:
                outcome = Dropped(outcome.number, "duplicate", "the question was kept before", outcome.question)
            if isinstance(outcome, Dropped):
                place = raw.place(outcome.number)
                if options.strict_data and outcome.reason not in _FILTERS:
                    raise DataError(f"{place}: {outcome.what} (--{_NAME.strict_data} stops at the first such row)")
                result.drop(outcome, place)
                continue
            if options.dedup:
                seen.add(outcome.key)
            result.keep(outcome)
            yield outcome
            if result.rows_kept == options.max_examples:
                result.stopped_early = True
                return


def _output_files(options: PrepareOptions, source: Path | None) -> tuple[Path, Path, Path]:
    """The files for training, validation and the report.

    Raises:
        ConfigError: one of them must not be replaced.
    """
    train = Path(os.path.expanduser(options.output_file or ""))
    if train.is_symlink():  # write where it leads; a rename would replace the link
        train = Path(os.path.realpath(train))
    valid = train.with_name(f"{train.stem}.valid{train.suffix}")
    report = train.with_name(f"{train.stem}.report.json")
    for path in (train, valid, report) if options.valid_ratio else (train, report):
        if path.is_dir():
            raise ConfigError(f"{_NAME.output_file}: {path} is a folder; give a file's name")
        if source is not None and os.path.realpath(path) == os.path.realpath(source):
            raise ConfigError(f"{_NAME.output_file}: {path} is the file that is read; write to another one")
        if path.exists() and not options.overwrite:
            raise ConfigError(f"{path} exists already; --{_NAME.overwrite} replaces it once the new one is complete")
    return train, valid, report


def _next_command(result: PrepareResult, train: Path, valid: Path) -> str:
    """The command that trains on what was written; "" where no row is left to train on."""
    if not result.files[str(train)]:
        return ""
    words = ["stepjepa", "train", *_flags(train_file=train)]
    if result.files.get(str(valid)):
        words += _flags(eval_file=valid)
    words += _flags(model_name="mini")
    if max(result.step_counts) > 1:
        words.append("--step_jepa")
    return shlex.join([*words, *_flags(output_dir=f"runs/{train.stem}")])


def _flags(**options: object) -> list[str]:
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


class _RawRows(RowSource):
    """Raw rows; of a file of lines the bytes of each, so that what is wrong with one stays a fault of its own.

    Raises:
        DataError: nothing that can be read.
    """

    def __init__(self, source: object, options: PrepareOptions):
        super().__init__(source, options.dataset_split, any_file=True)

    def unchanged(self) -> AbstractContextManager[object]:
        """A context in which the file must not change."""
        return nullcontext() if self.file is None else unchanged(self.file)

    def first_rows(self) -> list[Any]:
        """The first rows that can be read, for recognising their format.

        Raises:
            DataError: there is none.
        """
        with self.unchanged():
            first = [(number, attempted(parse, raw)) for number, raw in islice(self._raw(), _RECOGNISED_BY)]
        rows = [row for _, row in first if row is not None and not isinstance(row, RowError)]
        if rows:
            return rows
        for number, error in first:
            if error is not None:
                raise DataError(f"{self.place(number)}: {error}; none of the rows looked at can be read")
        raise no_rows(self.name)

    def blocks(self) -> Iterator[list[RawRow]]:
        """All rows, in blocks."""
        rows: list[RawRow] = []
        size = 0
        for row in self._raw():
            rows.append(row)
            size += len(row[1]) if isinstance(row[1], bytes) else 1000
            if len(rows) == _BLOCK_ROWS or size >= _BLOCK_BYTES:
                yield rows
                rows, size = [], 0
        if rows:
            yield rows

    def _raw(self) -> Iterator[RawRow]:
        if self.file is None or not self.by_line:
            yield from self
            return
        with reading(self.name):
            if self.file.suffix.lower() == ".csv":
                yield from csv_rows(self.file, LINE_BYTES)
                return
            with open(self.file, "rb") as file:
                yield from enumerate(read_lines(file, LINE_BYTES), 1)
