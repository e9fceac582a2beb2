"""Raw rows to chat rows with steps, for files of any size.

Rows stream from the source in blocks through a `Converter`, in this process or in several, and back in their order. Here
each is counted once and written. What goes where depends on the row and on those before it alone, so any number of
processes writes the same bytes. Every file appears complete or not at all.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

from stepjepa.data.files import FILE_SUFFIXES, JSON_SUFFIXES, csv_rows
from stepjepa.data.prepare.formats import recognise
from stepjepa.data.prepare.options import AnswerRules, PrepareOptions
from stepjepa.data.prepare.result import FILTERS, PrepareResult
from stepjepa.data.prepare.rows import KEY_BITS, LINE_BYTES, Converter, Dropped, Kept, RawRow, parse
from stepjepa.data.sources import RowSource
from stepjepa.errors import ConfigError, DataError, RowError
from stepjepa.utils.files import replacing, write_json
from stepjepa.utils.jsonl import read_lines, unchanged
from stepjepa.utils.parallel import mapped

_BLOCK_ROWS, _BLOCK_BYTES = 500, 2**20  # that are prepared together
_RECOGNISED_BY = 100  # rows
_LOOKED_AT = 1000  # rows, for those that can be read


def prepare(options: PrepareOptions, source: Any = None, rules: AnswerRules | None = None) -> PrepareResult:
    """Write a source of raw rows as chat rows with steps to ``options.output_file`` and its validation file.

    Args:
        source: the rows, in place of ``options.file``: a file (JSONL, text, CSV, Parquet), a Hub data set's name, or
            anything else that `RowSource` takes.
        rules: how final answers are found and compared, for ``require_correct`` and rows without a ground truth.

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
    train, valid, report = _output_files(options, raw.path)
    converter = Converter(form, options, raw.text_lines, rules)
    result = PrepareResult(
        raw.name, form.name, form.why, int(converter.least or 0), options.drop_short, options.system_prompt
    )
    targets = [train, valid] if options.valid_ratio else [train]
    try:
        train.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            names = [stack.enter_context(replacing(target)) for target in targets]
            files = [stack.enter_context(open(name, "wb", buffering=_BLOCK_BYTES)) for name in names]
            counts = [0] * len(files)
            with raw.unchanged():
                for kept in _kept(raw, converter, options, result):
                    target = int(kept.key < options.valid_ratio * 2**KEY_BITS)
                    files[target].write(kept.line)
                    counts[target] += 1
                if not result.rows_kept:
                    reasons = "; ".join(result.dropped())
                    raise DataError(f"{raw.name}: none of {result.rows_read:,} rows can be kept; dropped {reasons}")
        result.files = {str(target): rows for target, rows in zip(targets, counts, strict=True)}
        result.next_command = _next_command(result, valid, train.stem)
        job = {"input": {"name": raw.name}, "options": vars(options)}
        write_json(report, {**result.to_dict(), "job": job})
    except OSError as error:
        raise DataError(f"{error.filename or train}: cannot be written ({error.strerror or error})") from None
    return result


def _kept(raw: _RawRows, converter: Converter, options: PrepareOptions, result: PrepareResult) -> Iterator[Kept]:
    """The rows to write, until the source or ``max_examples`` ends them; every row is counted."""
    seen = set[int]()
    for _, outcomes in mapped(converter, ((None, block) for block in raw.blocks()), options.num_proc, "num_proc"):
        for outcome in outcomes:
            if isinstance(outcome, Kept) and options.dedup and outcome.key in seen:
                outcome = Dropped(outcome.number, "duplicate", "the question was kept before", outcome.question)
            if isinstance(outcome, Dropped):
                place = raw.place(outcome.number)
                if options.strict_data and outcome.reason not in FILTERS:
                    raise DataError(f"{place}: {outcome.what} (--strict_data stops at the first such row)")
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
    name = Path(os.path.expanduser(options.output_file or ""))
    if name.is_symlink():  # write where it leads; a rename would replace the link
        name = Path(os.path.realpath(name))
    found = name, name.with_name(f"{name.stem}.valid{name.suffix}"), name.with_name(f"{name.stem}.report.json")
    for path in found if options.valid_ratio else (found[0], found[2]):
        if path.is_dir():
            raise ConfigError(f"output_file: {path} is a folder; give a file's name")
        if source is not None and os.path.realpath(path) == os.path.realpath(source):
            raise ConfigError(f"output_file: {path} is the file that is read; write to another one")
        if path.exists() and not options.overwrite:
            raise ConfigError(f"{path} exists already; --overwrite replaces it once the new one is complete")
    return found


def _next_command(result: PrepareResult, valid: Path, stem: str) -> str:
    """The command that trains on what was written."""
    files = [file for file, rows in result.files.items() if rows]
    evaluation = ["--eval_file", str(valid)] if str(valid) in files else []
    train = [file for file in files if file != str(valid)]
    if not train:
        return ""
    objective = "--step_jepa" if max(result.step_counts) > 1 else "--objective=llm_jepa"
    words = ["stepjepa", "train", "--train_file", *train, *evaluation, "--model_name", "mini", objective]
    return shlex.join([*words, "--output_dir", f"runs/{stem}"])


class _RawRows:
    """A source of raw rows.

    Attributes:
        name: for messages.
        path: of the file, None for other sources.
        text_lines: whether rows are lines of text.

    Raises:
        DataError: nothing that can be read, or one JSON array.
    """

    def __init__(self, source: Any, options: PrepareOptions):
        is_name = isinstance(source, (str, os.PathLike))
        if not is_name and isinstance(source, Iterator):  # read twice: to recognise the format, and to prepare
            source = list(source)
        self.name = str(source) if is_name else type(source).__name__
        path = Path(os.path.expanduser(source)) if is_name else None
        self.path, self.text_lines = None, False
        suffix = path.suffix.lower() if path else ""
        try:
            if path is not None and path.is_file():
                self.path = path
                if options.format == "implicit_cot":
                    self.text_lines = True
                elif suffix not in FILE_SUFFIXES - JSON_SUFFIXES:
                    self.text_lines = _first_byte(path) != b"{" and suffix not in JSON_SUFFIXES
        except OSError as error:
            raise DataError(f"{self.name[:200]}: cannot be read ({error.strerror or error})") from None
        self._csv = suffix == ".csv" and not self.text_lines
        by_line = self.path is not None and (self.text_lines or suffix != ".parquet")
        self._source = None if by_line else RowSource(source, options.dataset_split)

    def place(self, number: int) -> str:
        """The place of a row, for messages."""
        return f"{self.name} {'line' if self._source is None else 'row'} {number}"

    def unchanged(self) -> Any:
        """A context in which the file must not change."""
        return unchanged(self.path) if self.path is not None else ExitStack()

    def first_rows(self) -> list[Any]:
        """The first rows that can be read, for recognising their format.

        Raises:
            DataError: there is none.
        """
        found: list[Any] = []
        wrong: tuple[int, RowError] | None = None
        looked_at = 0
        with self.unchanged():
            for number, raw in islice(self._rows(), _LOOKED_AT):
                looked_at += 1
                try:
                    row = parse(raw, self.text_lines)
                except RowError as error:
                    wrong = wrong or (number, error)
                    continue
                found += [] if row is None else [row]
                if len(found) == _RECOGNISED_BY:
                    break
            if not found and wrong is not None:
                which = f"none of the first {looked_at:,} lines can" if looked_at > 1 else "the only line cannot"
                raise DataError(f"{self.place(wrong[0])}: {wrong[1]} ({which} be read)")
            if not found:
                raise DataError(f"{self.name}: the file or data set is empty; it needs at least one row")
        return found

    def blocks(self) -> Iterator[list[RawRow]]:
        """All rows, in blocks."""
        rows: list[RawRow] = []
        size = 0
        for row in self._rows():
            rows.append(row)
            size += len(row[1]) if isinstance(row[1], bytes) else 1000
            if len(rows) == _BLOCK_ROWS or size >= _BLOCK_BYTES:
                yield rows
                rows, size = [], 0
        if rows:
            yield rows

    def _rows(self) -> Iterator[RawRow]:
        if self._source is not None:
            yield from self._source
            return
        assert self.path is not None
        try:
            if self._csv:
                yield from csv_rows(self.path, LINE_BYTES)
                return
            with open(self.path, "rb") as file:
                yield from enumerate(read_lines(file, LINE_BYTES), 1)
        except OSError as error:
            raise DataError(f"{self.name}: cannot be read ({error.strerror or error})") from None


def _first_byte(path: Path) -> bytes:
    """The first byte that is no white space.

    Raises:
        DataError: it opens a JSON array.
    """
    with open(path, "rb") as file:
        starts = (raw.lstrip(b"\xef\xbb\xbf \t\r\n") for raw in read_lines(file, 4096))
        first = next(filter(None, starts), b"")[:1]
    if first == b"[":
        raise DataError(f"{path}: this looks like one JSON array; write one object per line (JSONL)")
    return first
