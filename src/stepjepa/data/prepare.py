"""Raw rows to chat rows with steps, for files of any size: `stepjepa prepare`.

Rows stream from the source in blocks through a `Converter`, in this process or in several, and back in their order. Here
each is counted once and written. What goes where depends on the row and on those before it alone, so a run with more
processes, or one that was killed and gone on with, writes the same bytes.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import Any

from stepjepa.data.prepare_input import Block, Position, RawInput
from stepjepa.data.prepare_options import AnswerRules, PrepareOptions
from stepjepa.data.prepare_output import Outputs, WriteError
from stepjepa.data.prepare_recognise import recognise
from stepjepa.data.prepare_report import FILTERS, PrepareReport
from stepjepa.data.prepare_rows import KEY_BITS, Converter, Dropped, Kept, RawRow, question_key
from stepjepa.errors import DataError

Outcomes = list["Kept | Dropped"]

_converter: Converter | None = None  # of a worker process


def prepare(source: Any, options: PrepareOptions, rules: AnswerRules | None = None) -> PrepareReport:
    """Write `source` as chat rows with steps to ``options.output_file``, its shards, and its validation file.

    Args:
        source: a file (JSONL, text, CSV, Parquet), a Hub data set's name, or anything else that `RowSource` takes.
        rules: how final answers are found and compared, for ``require_correct`` and rows without a ground truth.

    Returns:
        The report, which stands in ``OUT.report.json`` too.

    Raises:
        ConfigError: an option that cannot be used, or output files that exist.
        DataError: the source cannot be read, no row of it can be kept, or the output cannot be written; with ``strict_data``
            the first row that is dropped for a fault.
    """
    options.check()
    raw = RawInput(source, options)
    outputs = Outputs(options, raw.identity())
    form = recognise(raw.first_rows(), options, raw.name)
    outputs.begin(raw.path)
    if outputs.finished is not None:
        return outputs.finished
    converter = Converter(form, options, raw.text_lines, rules)
    try:
        report = _write_rows(raw, converter, outputs, options, PrepareReport(raw.name, form.format, form.why))
        if not report.rows_kept:
            reasons = "; ".join(report.dropped())
            raise DataError(f"{raw.name}: none of {report.rows_read:,} rows can be kept; dropped {reasons}")
        outputs.commit(report)
    except BaseException as error:
        # A full disk or an interruption can be gone on from; a source that cannot be used cannot.
        outputs.abort(keep=isinstance(error, WriteError) or not isinstance(error, DataError))
        raise
    return report


def _write_rows(
    raw: RawInput, converter: Converter, outputs: Outputs, options: PrepareOptions, report: PrepareReport
) -> PrepareReport:
    """Convert, count and write until the source or ``max_examples`` ends it."""
    position, seen = Position(), set[int]()
    if outputs.saved is not None:
        position = Position(*outputs.saved["position"])
        report = PrepareReport.from_dict(outputs.saved["report"])
        report.resumed_at = report.rows_read
        if options.dedup:
            seen.update(question_key(json.loads(line)["question"]) for line in outputs.partial_lines())
    valid_below = int(options.valid_ratio * 2**KEY_BITS)
    valid_index = len(outputs.train)
    train_rows = sum(outputs.rows[:valid_index])
    for end, outcomes in _converted(raw.blocks(position), converter, options.num_proc):
        for outcome in outcomes:
            if isinstance(outcome, Kept) and options.dedup and outcome.key in seen:
                outcome = Dropped(outcome.number, "duplicate", "the question was kept before", outcome.question)
            if isinstance(outcome, Dropped):
                place = raw.place(outcome.number)
                if options.strict_data and outcome.reason not in FILTERS:
                    raise DataError(f"{place}: {outcome.what} (--strict_data stops at the first such row)")
                report.drop(outcome, place)
                continue
            if options.dedup:
                seen.add(outcome.key)
            if outcome.key < valid_below:
                outputs.write(valid_index, outcome.line)
            else:
                outputs.write(train_rows % valid_index, outcome.line)
                train_rows += 1
            report.keep(outcome.steps)
            if report.rows_kept == options.max_examples:
                report.stopped_early = True
                break
        if report.stopped_early:
            break
        if outputs.checkpoint_due():
            outputs.checkpoint({"position": end, "report": report.to_dict()})
    report.files = {str(target): rows for target, rows in zip(outputs.targets, outputs.rows, strict=True)}
    return report


def _converted(blocks: Iterator[Block], converter: Converter, processes: int) -> Iterator[tuple[Position, Outcomes]]:
    """The position behind every block and what became of its rows, in the blocks' order."""
    if processes == 1:
        for block in blocks:
            yield block.end, converter(block.rows)
        return
    waiting: deque[tuple[Position, Future[Outcomes]]] = deque()
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, initializer=_start_worker, initargs=(converter,))
    try:
        for block in blocks:
            waiting.append((block.end, pool.submit(_convert, block.rows)))
            if len(waiting) > 2 * processes:  # so that blocks do not pile up in memory
                end, future = waiting.popleft()
                yield end, future.result()
        for end, future in waiting:
            yield end, future.result()
    except BrokenProcessPool:
        raise DataError(
            "a worker process was killed (the memory may have been full): try a smaller num_proc; a script must call "
            "prepare under if __name__ == '__main__'"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _start_worker(converter: Converter) -> None:
    global _converter
    _converter = converter
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interruption is for the parent to handle
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _convert(rows: list[RawRow]) -> Outcomes:
    assert _converter is not None
    return _converter(rows)
