"""From a model and rows to saved states: the pairs of the rows as training reads them, and the states of both views.

The views go through the model in the two-pass form (`forest.two_pass`): the source at the end of the chat before it, or
behind its predictors, the target as a copy that sees nothing else. It needs no mask but padding, so it serves every
architecture; the numbers are those of the other forms.

Shapes: L layers, N pairs, B pairs of a batch, R rows, T tokens, D width.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch

from stepjepa.analysis.states import FINAL, States
from stepjepa.data.encode import CHUNK_ROWS, EncodeOptions, PlacedRow, make_encoder, nothing_kept
from stepjepa.data.report import REASONS, DataReport
from stepjepa.data.sources import RowSource
from stepjepa.data.types import Example, Rows
from stepjepa.errors import ConfigError, DataError
from stepjepa.forest.two_pass import TwoPassCollator
from stepjepa.modeling.extras import predictor_head
from stepjepa.modeling.forward import causal_lm, row_states
from stepjepa.modeling.parts import backbone
from stepjepa.modeling.trim import decoder_layers
from stepjepa.objectives.base import objective_of


class StatesNotFinite(DataError):
    """States that are NaN or infinite: the model has diverged, or its dtype is too short."""


@dataclass(frozen=True)
class Pairs:
    """Pairs of a data set, as one tokenizer and one method make them.

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

    def __len__(self) -> int:
        return len(self.examples)


def read_pairs(
    rows: RowSource, tokenizer: Any, renderer: Any, options: EncodeOptions, max_rows: int | None = None
) -> Pairs:
    """The pairs of a data set's first rows, in their order.

    Steps are counted through the whole row, those without a neighbour in their answer, and those without a token, left out.

    Args:
        renderer: a `ChatRenderer`; None where the tokenizer has no chat template, which plain text does not need.
        options: as a run has them.
        max_rows: read only so many.

    Raises:
        DataError: nothing to read, or fewer than two pairs; with ``strict`` a row that cannot be used.
        ConfigError: a tokenizer or template that cannot be used.
    """
    encode, every = make_encoder(rows, tokenizer, renderer, options), None
    objective = options.objective
    if options.needs_steps:
        assert objective is not None
        method = copy.copy(objective.options)
        method.step_pairs, method.horizon, method.multi_horizon = "all", 1, None
        method.last_token, method.forward = None, "packed"
        every = make_encoder(rows, tokenizer, renderer, replace(options, objective=objective_of(method)))
    report, examples, numbers, steps_of = DataReport(rows.name), list[Example](), list[int](), list[int]()
    for first, chunk in _chunks(rows, max_rows):
        encoded = encode(chunk)
        report.add(encoded.report)
        row_of = np.repeat(np.arange(first, first + len(chunk)), encoded.counts).tolist()
        all_steps: Sequence[Example] = encoded.store if every is None else every(chunk).store
        for row, example, whole in zip(row_of, encoded.store, all_steps, strict=True):
            ends = [whole.sees(pair.source) + 1 for pair in whole.pairs]
            ends += [view.stop for pair in whole.pairs if (view := whole.view_on_trunk(pair.target)) is not None]
            for pair in example.pairs:
                target = example.view_on_trunk(pair.target)
                examples.append(example.with_pairs([pair]))
                numbers.append(row)
                start = 0 if target is None else target.start
                steps_of.append(1 + int(np.searchsorted(np.unique(ends), start, side="right")))
    if not report.rows_read:
        raise DataError(f"{rows.name}: the file or data set is empty; it needs at least two rows")
    if not report.examples:
        raise nothing_kept(report)
    if len(examples) < 2:
        raise _too_few(report, len(examples), objective.name if objective is not None else "regular")
    given = np.array(steps_of, np.int64) if every is not None else None
    return Pairs(rows.name, tuple(examples), np.array(numbers, np.int64), given, report)


def layers_of(model: Any, layers: Sequence[int] | None = None) -> tuple[int, ...]:
    """The layers that are asked for, each once; all without `layers`: 0, the embeddings, to the last one, and -1 behind the
    final norm.

    Raises:
        ConfigError: the model has no such layer, or its layers go by no known name.
    """
    chosen = None if layers is None else tuple(dict.fromkeys(layers))
    if chosen == (FINAL,):
        return chosen
    inner: Any = causal_lm(model)
    found = decoder_layers(backbone(inner))
    if found is None:
        raise ConfigError(
            f"{type(inner).__name__}: its layers have no name that is known; ask for the last hidden state alone with "
            "--layers -1"
        )
    if chosen is None:
        return (*range(len(found) + 1), FINAL)
    for layer in chosen:
        if not FINAL <= layer <= len(found):
            raise ConfigError(f"--layers {layer}: this model has 0 (embeddings) to {len(found)}, and -1 (final norm)")
    return chosen


def collect_states(
    model: Any,
    name: str,
    pairs: Pairs,
    *,
    layers: Sequence[int] | None = None,
    predictor_ids: Sequence[int] = (),
    pad_token_id: int = 0,
    batch_size: int = 16,
    advance: Callable[[int], None] = lambda count: None,
) -> States:
    """States of both views in some layers, float32.

    A predictor head that is part of the model (`extras.attach_saved`) is applied to the sources behind the final norm, as in
    training. Targets are encoded by the model itself, also where an EMA encoder did that in training.

    Args:
        model: a causal LM on its device, bare or inside PEFT; it runs in evaluation mode.
        name: of the model, for the file and for messages.
        layers: see `layers_of`.
        predictor_ids: ids of the K predictors in the order in which they stand behind a source; with none a source is read
            at its last token.
        batch_size: pairs a batch.
        advance: told after each batch how many pairs were done.

    Raises:
        ConfigError: see `layers_of`; or states of different widths.
        StatesNotFinite: some are.
    """
    chosen, collator = layers_of(model, layers), TwoPassCollator(tuple(predictor_ids), pad_token_id, True)
    found: dict[str, np.ndarray] = {}
    # Sources of similar length in a batch need little padding.
    order = np.argsort([-_source_length(example) for example in pairs.examples], kind="stable")
    training = model.training
    model.eval()
    try:
        for start in range(0, len(order), batch_size):
            places = order[start : start + batch_size]
            batch = collator([pairs.examples[place] for place in places])
            # All sources of a run are read alike: behind a branch, or on the trunk.
            sources = batch.rows if batch.views is None else batch.views
            first = 0 if batch.views is None else batch.rows.input_ids.numel()
            sides = (
                ("source", sources, batch.sources.positions - first),
                ("target", batch.target_rows, batch.targets.positions),
            )
            for side, rows, positions in sides:
                assert rows is not None  # pairs have targets
                read = read_layers(model, rows, positions, chosen, head=side == "source")
                if len({states_BD.shape[1] for states_BD in read}) > 1:
                    raise ConfigError(f"{name}: its layers have states of different widths; choose some with --layers")
                if side not in found:
                    found[side] = np.empty((len(chosen), len(pairs), read[0].shape[1]), np.float32)
                for number, states_BD in enumerate(read):
                    found[side][number, places] = states_BD
            advance(len(places))
    finally:
        model.train(training)
    for side, states_LND in found.items():
        for layer, states_ND in zip(chosen, states_LND, strict=True):
            if not np.isfinite(states_ND).all():
                bad = int((~np.isfinite(states_ND).all(axis=1)).sum())
                raise StatesNotFinite(
                    f"{name}: the {side} states of layer {layer} are not finite in {bad} of {len(pairs)} pairs; its weights "
                    "are broken, or --dtype is too short for them"
                )
    return States(name, pairs.file, chosen, pairs.rows, found["source"], found["target"], pairs.steps)


@torch.no_grad()
def read_layers(
    model: Any, rows: Rows, read_B: torch.Tensor, layers: Sequence[int], head: bool = False
) -> list[np.ndarray]:
    """States (B, D) float32 of one padded batch at the positions `read_B` of its flattened (R * T) states, layer by layer.

    Args:
        rows: (R, T), padded.
        head: send the states behind the final norm through the model's predictor head, if it has one.
    """
    inner: Any = causal_lm(model)
    device = inner.get_input_embeddings().weight.device
    read_B = read_B.to(device)
    found: dict[int, torch.Tensor] = {}

    def keep(layer: int, states: Any) -> None:
        states_RTD = states if isinstance(states, torch.Tensor) else states[0]
        found[layer] = states_RTD.flatten(0, 1).index_select(0, read_B).float()

    def given(module: Any, arguments: Any, named: Any) -> None:
        keep(0, arguments[0] if arguments else named["hidden_states"])

    def behind(layer: int) -> Any:
        return lambda module, arguments, output: keep(layer, output)

    with ExitStack() as stack:
        if set(layers) - {FINAL}:
            modules = decoder_layers(backbone(inner))
            assert modules is not None  # `layers_of` has asked
            if 0 in layers:
                handle = modules[0].register_forward_pre_hook(given, with_kwargs=True)
                stack.callback(handle.remove)
            for layer in layers:
                if layer > 0:
                    stack.callback(modules[layer - 1].register_forward_hook(behind(layer)).remove)
        last = row_states(inner, rows.to(device))
    if FINAL in layers:
        found[FINAL] = last.index_select(0, read_B).float()
        predictor = predictor_head(inner)
        if head and predictor is not None:
            found[FINAL] = predictor(found[FINAL])
    return [found[layer].cpu().numpy() for layer in layers]


def _chunks(rows: RowSource, max_rows: int | None) -> Iterator[tuple[int, list[PlacedRow]]]:
    """Number of the first row, and the rows with their places."""
    placed = ((rows.place(number), row) for number, row in islice(rows, max_rows))
    first = 0
    while chunk := list(islice(placed, CHUNK_ROWS)):
        yield first, chunk
        first += len(chunk)


def _source_length(example: Example) -> int:
    source = example.pairs[0].source
    view, segment = example.view_on_trunk(source), example.segment(source)
    return view.stop if view is not None else segment.length if segment is not None else 0


def _too_few(report: DataReport, found: int, objective: str) -> DataError:
    why = "; ".join(f"{count} {REASONS.get(name, name)}" for name, count in report.examples_without_pairs.items())
    return DataError(
        f"{report.source}: {('no pair', 'one pair')[found]} for {objective}, and two are needed"
        f"{f' (rows: {why})' if why else ''}; "
        f"check --objective{', --step_splitter' if objective == 'step_jepa' else ''} and --max_length"
    )
