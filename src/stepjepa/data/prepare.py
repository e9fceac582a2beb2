"""Raw rows to chat rows with steps, for files of any size: ``stepjepa prepare``.

Rows stream from the source in blocks through a `Converter`, in this process or in several, and come back in order. This
module counts each row once and writes the kept rows. The output depends only on the rows and their order, so any number of
processes writes the same bytes. Every file appears complete or not at all.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from stepjepa.config.option import Names
from stepjepa.data.options import PrepareOptions
from stepjepa.data.prepare_rows import KEY_BITS, Converter, Kept, recognise
from stepjepa.data.report import RowCounts
from stepjepa.data.sources import JSON_SUFFIXES, RowSource
from stepjepa.errors import ConfigError, DataError, RowError, no_rows
from stepjepa.utils.files import replacing, write_json
from stepjepa.utils.parallel import mapped
from stepjepa.utils.text import counted, escaped

_NAME = Names(PrepareOptions)
# Reasons that the user's own filters give for skipping a row, so strict_data does not stop at them.
_FILTERS = {"too_few_steps", "wrong_answer", "duplicate"}
# The number of rows in a block, which a worker prepares together.
_BLOCK_ROWS = 500
# The number of rows at the start of the source from which the format is recognised.
_RECOGNISED_BY = 100


@dataclass
class PrepareResult(RowCounts):
    """The counts of `prepare`: every row is either kept or skipped. Its ``str`` is the output of the command.

    Attributes:
        format: the format of the source.
        rows_kept: rows in the output.
        step_counts: steps -> kept rows.
        files: output file -> rows in it.
        next_command: the command that trains on the files; empty if the training file has no rows.
    """

    format: str = ""
    rows_kept: int = 0
    step_counts: Counter[int] = field(default_factory=Counter)
    files: dict[str, int] = field(default_factory=dict)
    next_command: str = ""

    def __str__(self) -> str:
        # Text from the file is escaped, so that it cannot control the terminal.
        skipped = self.rows_skipped.total()
        steps = ", ".join(
            f"{steps} in {rows:,}" for steps, rows in sorted(self.step_counts.items())
        )
        lines = [
            f"Prepared: {escaped(self.source)}",
            f"  Format: {self.format}",
            f"  Rows: {self.rows_read:,} read, {self.rows_kept:,} kept, {skipped:,} skipped",
            *(f"    {escaped(line)}" for line in self.skipped_lines()),
            f"  Steps per row: {steps}",
            *(f"  {escaped(name)}: {counted(rows, 'row')}" for name, rows in self.files.items()),
        ]
        if self.next_command:
            lines.append(f"Next: {self.next_command}")
        return "\n".join(lines)


def prepare(options: PrepareOptions, source: object = None) -> PrepareResult:
    """Write a source of raw rows as chat rows with steps to ``options.output_file`` and its validation file.

    Args:
        source: the rows, in place of ``options.file``: a file (JSONL, CSV, Parquet), a Hub data set's name, or
            anything else that `RowSource` takes.

    Returns:
        The counts, which are also in ``OUT.report.json``.

    Raises:
        ConfigError: an option that cannot be used, or output files that exist.
        DataError: the source cannot be read, no row can be kept, or the output cannot be written; with ``strict_data`` also
            for the first row that is skipped for a fault.
    """
    options.check()
    raw = RowSource(options.file if source is None else source, options.dataset_split)
    form = recognise(_first_rows(raw), options, raw.name)
    converter = Converter(form, options)
    train, valid, report = _output_files(options, raw.file)
    result = PrepareResult(raw.name, format=form.name)
    targets = [train, valid] if options.valid_ratio else [train]
    try:
        train.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            names = [stack.enter_context(replacing(target)) for target in targets]
            files = [stack.enter_context(open(name, "wb")) for name in names]
            counts = [0] * len(files)
            for kept in _kept(raw, converter, options, result):
                # The hash of the question decides, so rows with the same question never land in both files.
                target = int(kept.key < options.valid_ratio * 2**KEY_BITS)
                files[target].write(kept.line)
                counts[target] += 1
            # Raises inside the stack, which then leaves no output behind.
            result.require(result.rows_kept, "can be kept")
        result.files = {str(target): rows for target, rows in zip(targets, counts, strict=True)}
        if counts[0]:
            result.next_command = _next_command(result, train, valid)
        write_json(report, {**result.to_dict(), "options": vars(options)})
    except OSError as error:
        raise DataError(
            f"{error.filename or train}: cannot be written ({error.strerror or error})"
        ) from None
    return result


def _next_command(result: PrepareResult, train: Path, valid: Path) -> str:
    """The command that trains on the output."""
    words = ["stepjepa", "train", *_flags(train_file=train)]
    if result.files.get(str(valid)):
        words += _flags(eval_file=valid)
    words += _flags(model_name="mini")
    if max(result.step_counts) > 1:
        words.append("--step_jepa")
    return shlex.join([*words, *_flags(output_dir=f"runs/{train.stem}")])


def _flags(**options: object) -> list[str]:
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


def _first_rows(raw: RowSource) -> list[object]:
    """The readable rows among the first ones, which show the format; DataError if there are none."""
    first = list(islice(raw.rows(strict=False), _RECOGNISED_BY))
    rows = [row for _, row in first if not isinstance(row, RowError)]
    if rows:
        return rows
    for number, error in first:
        raise DataError(f"{raw.place(number)}: {error}; none of the first rows can be read")
    raise no_rows(raw.name)


def _kept(
    raw: RowSource, converter: Converter, options: PrepareOptions, result: PrepareResult
) -> Iterator[Kept]:
    """Yield the rows to write, and count every row."""
    # Hashes of questions, 64 bits per row: the texts of a large file would not fit into memory.
    seen = set[int]()
    rows = raw.rows(strict=False)
    blocks = iter(lambda: list(islice(rows, _BLOCK_ROWS)), [])
    for outcomes in mapped(converter, blocks, options.num_proc, _NAME.num_proc):
        for number, outcome in outcomes:
            result.rows_read += 1
            if options.dedup and isinstance(outcome, Kept) and outcome.key in seen:
                outcome = RowError("duplicate", "an earlier row has the same question")
            if isinstance(outcome, RowError):
                strict = options.strict_data and outcome.reason not in _FILTERS
                result.skip(outcome, raw.place(number), strict)
                continue
            if options.dedup:
                seen.add(outcome.key)
            result.rows_kept += 1
            result.step_counts[outcome.steps] += 1
            yield outcome


def _output_files(options: PrepareOptions, source: Path | None) -> tuple[Path, Path, Path]:
    """The files for training, validation and the report.

    Raises:
        ConfigError: a file must not be replaced, or its name does not end like that of a JSONL file.
    """
    train = Path(os.path.expanduser(options.output_file or ""))
    if train.suffix.lower() not in JSON_SUFFIXES:
        raise ConfigError(
            f"{_NAME.output_file} is '{train}'; rows are written as JSONL, so the name must end in .jsonl"
        )
    # Write to the target of a link: the final rename would replace the link itself.
    if train.is_symlink():
        train = Path(os.path.realpath(train))
    valid = train.with_name(f"{train.stem}.valid{train.suffix}")
    report = train.with_name(f"{train.stem}.report.json")
    for path in (train, valid, report) if options.valid_ratio else (train, report):
        if path.is_dir():
            raise ConfigError(f"{_NAME.output_file}: {path} is a folder; give the name of a file")
        if source is not None and os.path.realpath(path) == os.path.realpath(source):
            raise ConfigError(
                f"{_NAME.output_file}: {path} is the input file; write to another file"
            )
        if path.exists() and not options.overwrite:
            raise ConfigError(
                f"{path} exists already; --{_NAME.overwrite} replaces it once the new one is complete"
            )
    return train, valid, report
