"""Raw rows to chat rows with steps, for files of any size: `stepjepa prepare`.

Rows stream from the source in blocks through a `Converter`, in this process or in several, and back in their order. Here
each is counted once and written. What goes where depends on the row and on those before it alone, so a run with more
processes, or one that was killed and gone on with, writes the same bytes.
"""

from __future__ import annotations

import json
from typing import Any

from stepjepa.data.parallel import mapped
from stepjepa.data.prepare_input import Position, RawInput
from stepjepa.data.prepare_options import AnswerRules, PrepareOptions
from stepjepa.data.prepare_output import Outputs, WriteError
from stepjepa.data.prepare_recognise import recognise
from stepjepa.data.prepare_report import FILTERS, PrepareReport
from stepjepa.data.prepare_rows import KEY_BITS, Converter, Dropped, Kept, question_key
from stepjepa.errors import DataError


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
        report = PrepareReport(
            raw.name, form.format, form.why, converter.least, options.drop_short, options.system_prompt
        )
        report = _write_rows(raw, converter, outputs, options, report)
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
    tasks = ((block.end, block.rows) for block in raw.blocks(position))
    for end, outcomes in mapped(converter, tasks, options.num_proc, "num_proc"):
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
            report.keep(outcome)
            if report.rows_kept == options.max_examples:
                report.stopped_early = True
                break
        if report.stopped_early:
            break
        if outputs.checkpoint_due():
            outputs.checkpoint({"position": end, "report": report.to_dict()})
    report.files = {str(target): rows for target, rows in zip(outputs.targets, outputs.rows, strict=True)}
    return report
