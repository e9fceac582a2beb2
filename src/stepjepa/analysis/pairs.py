"""The pairs of a data set, as one tokenizer and one method make them.

Shapes: N pairs.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from transformers import PreTrainedTokenizerBase

from stepjepa.analysis.options import AnalyzeOptions
from stepjepa.config.option import Names
from stepjepa.data.encode import CHUNK_ROWS, EncodeOptions, make_encoder
from stepjepa.data.report import REASONS, DataReport
from stepjepa.data.sources import RowSource
from stepjepa.data.template import ChatRenderer
from stepjepa.data.types import Example
from stepjepa.errors import DataError
from stepjepa.objectives.base import Objective, objective_of
from stepjepa.objectives.step_jepa import StepJEPA
from stepjepa.training.options import JEPAOptions

_NAME = Names(AnalyzeOptions)


@dataclass(frozen=True)
class Pairs:
    """Pairs of a data set.

    Attributes:
        file: of the rows.
        examples: one for each pair, with that pair alone.
        rows: (N,) int64, the pairs' rows, counted from 0.
        steps: (N,) int64, number of the target among the steps of its row, from 1; None where views are no steps.
        report: on the rows.
    """

    file: str
    examples: tuple[Example, ...]
    rows: np.ndarray
    steps: np.ndarray | None
    report: DataReport


def read_pairs(
    rows: RowSource,
    tokenizer: PreTrainedTokenizerBase,
    renderer: ChatRenderer | None,
    options: EncodeOptions,
    max_rows: int | None = None,
) -> Pairs:
    """The pairs of a data set's first rows, in their order.

    Steps are counted through the row, those without a neighbour in their answer, and those without a token, left out.

    Args:
        renderer: None where the tokenizer has no chat template, which plain text does not need.
        options: as a run has them.
        max_rows: read only so many.

    Raises:
        DataError: nothing to read, or fewer than two pairs; with ``strict`` a row that cannot be used.
        ConfigError: a tokenizer or template that cannot be used.
    """
    encode = make_encoder(rows, tokenizer, renderer, options)
    encode_steps = None
    if options.objective is not None and options.needs_steps:  # a second reading pairs every step, and so counts them
        counting = replace(options, objective=every_step(options.objective.options))
        encode_steps = make_encoder(rows, tokenizer, renderer, counting)
    report = DataReport(rows.name)
    examples, numbers, steps = list[Example](), list[int](), list[int]()
    first = 0
    numbered = islice(rows, max_rows)
    while chunk := [(rows.place(number), row) for number, row in islice(numbered, CHUNK_ROWS)]:
        encoded = encode(chunk)
        report.add(encoded.report)
        row_numbers = np.arange(first, first + len(chunk))
        rows_of_examples = np.repeat(row_numbers, encoded.counts).tolist()
        counted = encoded.store if encode_steps is None else encode_steps(chunk).store
        for row, example, with_all_steps in zip(rows_of_examples, encoded.store, counted, strict=True):
            ends = _step_ends(with_all_steps)
            for pair in example.pairs:
                target = example.view_on_trunk(pair.target)
                examples.append(example.with_pairs([pair]))
                numbers.append(row)
                start = 0 if target is None else target.start
                before = np.searchsorted(ends, start, side="right")
                steps.append(1 + int(before))
        first += len(chunk)
    report.require(report.examples)
    if len(examples) < 2:
        raise _too_few(len(examples), report, options, encode_steps is not None)
    step_numbers = None if encode_steps is None else np.array(steps, np.int64)
    return Pairs(rows.name, tuple(examples), np.array(numbers, np.int64), step_numbers, report)


def _step_ends(example: Example) -> np.ndarray:
    """Where the steps of an example end, whose pairs are every step and the next one, in ascending order."""
    ends = [example.sees(pair.source) + 1 for pair in example.pairs]
    for pair in example.pairs:
        view = example.view_on_trunk(pair.target)
        if view is not None:
            ends.append(view.stop)
    return np.unique(ends)


def _too_few(count: int, report: DataReport, options: EncodeOptions, of_steps: bool) -> DataError:
    objective = options.objective.name if options.objective else "regular"
    what = f"{('no pair', 'one pair')[count]} for {objective}, and two are needed"
    why = "; ".join(f"{number} {REASONS.get(name, name)}" for name, number in report.examples_without_pairs.items())
    if why:
        what = f"{what} (rows: {why})"
    names = (
        [_NAME.objective, _NAME.step_splitter, _NAME.max_length] if of_steps else [_NAME.objective, _NAME.max_length]
    )
    return DataError(f"{report.source}: {what}; check {', '.join(f'--{name}' for name in names)}")


def every_step(method: JEPAOptions) -> Objective:
    """The objective that pairs every step with the next one, by last states on the trunk, whatever `method` pairs."""
    method = copy.copy(method)
    method.objective, method.step_pairs, method.horizon, method.multi_horizon = StepJEPA.name, "all", 1, None
    method.last_token, method.readout, method.readout_layer, method.predictors = None, "last", None, 0
    method.forward, method.jepa_target_column = "packed", None
    return objective_of(method)
