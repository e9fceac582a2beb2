"""From a model and rows to states: the pairs of rows, and the pairs and likelihoods of solutions, as training reads them.

The pairs of rows go through the model in the two-pass form (`forest.two_pass`): the source at the end of the chat before it,
or after its predictors, the target as a copy that sees nothing else. It needs no mask but padding, so it serves every
architecture and every layer; the numbers are those of the other forms. Solutions go through the run's own form.

Shapes: L layers, N pairs, B pairs of a batch, P pairs of a solution, R rows, T tokens, D width, V vocabulary.
"""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch

from stepjepa.analysis.states import FINAL, States
from stepjepa.data.chat import ChatRenderer
from stepjepa.data.encode import CHUNK_ROWS, EncodeOptions, PlacedRow, make_encoder, nothing_kept, read_chat
from stepjepa.data.report import REASONS, DataReport
from stepjepa.data.sources import RowSource
from stepjepa.data.tokens import encode_texts, token_span
from stepjepa.data.types import Batch, Example, Rows
from stepjepa.errors import ConfigError, DataError
from stepjepa.forest.collate import TwoPassCollator
from stepjepa.forest.layout import label_indices
from stepjepa.modeling.extras import predictor_head
from stepjepa.modeling.forward import causal_lm, read_vectors, row_states
from stepjepa.modeling.logits import output_head
from stepjepa.modeling.parts import backbone, decoder_layers
from stepjepa.objectives.base import OBJECTIVES, objective_of

Advance = Callable[[int], None]  # called after each batch with the number of items in it


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
    numbered, first = islice(rows, max_rows), 0
    while chunk := [(rows.place(number), row) for number, row in islice(numbered, CHUNK_ROWS)]:
        encoded = encode(chunk)
        report.add(encoded.report)
        row_of = np.repeat(np.arange(first, first + len(chunk)), encoded.counts).tolist()
        all_steps: Sequence[Example] = encoded.store if every is None else every(chunk).store
        for row, example, complete in zip(row_of, encoded.store, all_steps, strict=True):
            ends = [complete.sees(pair.source) + 1 for pair in complete.pairs]
            ends += [view.stop for pair in complete.pairs if (view := complete.view_on_trunk(pair.target)) is not None]
            for pair in example.pairs:
                target = example.view_on_trunk(pair.target)
                examples.append(example.with_pairs([pair]))
                numbers.append(row)
                start = 0 if target is None else target.start
                steps_of.append(1 + int(np.searchsorted(np.unique(ends), start, side="right")))
        first += len(chunk)
    if not report.rows_read:
        raise DataError(f"{rows.name}: the file or data set is empty; it needs at least two rows")
    if not report.examples:
        raise nothing_kept(report)
    if len(examples) < 2:
        why = "; ".join(f"{count} {REASONS.get(name, name)}" for name, count in report.examples_without_pairs.items())
        name = objective.name if objective else OBJECTIVES[0]
        raise DataError(
            f"{rows.name}: {('no pair', 'one pair')[len(examples)]} for {name}, and "
            f"two are needed{f' (rows: {why})' if why else ''}; "
            f"check --objective{', --step_splitter' if every is not None else ''} and --max_length"
        )
    given = np.array(steps_of, np.int64) if every is not None else None
    return Pairs(rows.name, tuple(examples), np.array(numbers, np.int64), given, report)


def layers_of(model: Any, layers: Sequence[int] | None = None) -> tuple[int, ...]:
    """The layers that are asked for, each once; without `layers` all: 0, the embeddings, to the last one, and -1 after the
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
    advance: Advance = lambda count: None,
) -> States:
    """States of both views in some layers, float32.

    A predictor head that is part of the model (`extras.attach_saved`) is applied to the sources after the final norm, as in
    training. Targets are encoded by the model itself, also where an EMA encoder did that in training.

    Args:
        model: a causal LM on its device, bare or inside PEFT; it runs in evaluation mode.
        name: of the model, for the file and for messages.
        layers: see `layers_of`.
        predictor_ids: ids of the K predictors in their order; with none a source is read at its last token.
        batch_size: pairs a batch.

    Raises:
        ConfigError: see `layers_of`; or states of different widths.
        StatesNotFinite: some are.
    """
    chosen, collator = layers_of(model, layers), TwoPassCollator(tuple(predictor_ids), pad_token_id, True)
    found: dict[str, np.ndarray] = {}
    # Sources of similar length in a batch need little padding.
    order = np.argsort([-_source_length(example) for example in pairs.examples], kind="stable")
    with _evaluating(model):
        for start in range(0, len(order), batch_size):
            numbers = order[start : start + batch_size]
            batch = collator([pairs.examples[number] for number in numbers])
            # All sources of a run are read alike: after a branch, or on the trunk.
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
                for index, states_BD in enumerate(read):
                    found[side][index, numbers] = states_BD
            advance(len(numbers))
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
        head: send the states after the final norm through the model's predictor head, if it has one.
    """
    inner: Any = causal_lm(model)
    device = inner.get_input_embeddings().weight.device
    read_B = read_B.to(device)
    found: dict[int, torch.Tensor] = {}

    def keep(layer: int, states: Any) -> None:
        states_RTD = states if isinstance(states, torch.Tensor) else states[0]
        found[layer] = states_RTD.flatten(0, 1).index_select(0, read_B).float()

    def first_input(module: Any, arguments: Any, named: Any) -> None:
        keep(0, arguments[0] if arguments else named["hidden_states"])

    def output_of(layer: int) -> Any:
        return lambda module, arguments, output: keep(layer, output)

    with ExitStack() as stack:
        if set(layers) - {FINAL}:
            modules = decoder_layers(backbone(inner))
            assert modules is not None  # `layers_of` has asked
            if 0 in layers:
                stack.callback(modules[0].register_forward_pre_hook(first_input, with_kwargs=True).remove)
            for layer in layers:
                if layer > 0:
                    stack.callback(modules[layer - 1].register_forward_hook(output_of(layer)).remove)
        last = row_states(inner, rows.to(device))
    if FINAL in layers:
        found[FINAL] = last.index_select(0, read_B).float()
        predictor = predictor_head(inner)
        if head and predictor is not None:
            found[FINAL] = predictor(found[FINAL])
    return [found[layer].cpu().numpy() for layer in layers]


def _source_length(example: Example) -> int:
    source = example.pairs[0].source
    view, segment = example.view_on_trunk(source), example.segment(source)
    return view.stop if view is not None else segment.length if segment is not None else 0


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


# Solutions


@dataclass(frozen=True)
class EncodedSolution:
    """A solution as training would read it.

    Attributes:
        example: labels and pairs are those of the solution alone, not of answers before it.
        steps: their texts, separators included.
        sources: for each pair of the example, which of the steps is its source.
    """

    example: Example
    steps: tuple[str, ...]
    sources: tuple[int, ...]


@dataclass(frozen=True)
class Reading:
    """What a model makes of one solution: (P, D) float32 states of its pairs, and the summed log-likelihood (nats) of its
    `tokens` tokens, the end of its turn included."""

    source_states: torch.Tensor
    target_states: torch.Tensor
    log_likelihood: float
    tokens: int


def encode_solutions(
    rows: Sequence[PlacedRow], tokenizer: Any, renderer: ChatRenderer, options: EncodeOptions
) -> tuple[list[EncodedSolution | None], DataReport]:
    """Chats whose last message is a solution, tokenised and paired; None for one that cannot be, which the report counts.

    Args:
        rows: each with its place; ``messages`` and what `options.steps_column` names.
        options: with the objective ``step_jepa`` and one horizon.

    Raises:
        ConfigError: a tokenizer that cannot be used.
    """
    encoded = make_encoder(RowSource([row for _, row in rows]), tokenizer, renderer, options)(rows)
    examples, found = iter(encoded.store), list[EncodedSolution | None]()
    for (_, row), count in zip(rows, encoded.counts, strict=True):
        found.append(_with_steps(next(examples), row, tokenizer, renderer, options) if count else None)
    return found, encoded.report


def _with_steps(
    example: Example, row: Any, tokenizer: Any, renderer: ChatRenderer, options: EncodeOptions
) -> EncodedSolution:
    read = read_chat(row, renderer, options)
    assert read.steps is not None  # the objective is step_jepa
    chat, spans = read.rendered, read.steps.spans[-1]
    answer = chat.spans[-1]
    text = chat.text[answer.start : answer.end]
    ((_, last),) = encode_texts(tokenizer, [chat.text])
    starts = [token_span(last, answer.start + start, answer.start + stop)[0] for start, stop in spans]
    labelled = example.label_spans[-1]
    pairs = [pair for pair in example.pairs if example.sees(pair.source) >= labelled.start]
    # By the target, because a step without a token of its own begins where the next one does.
    targets = [example.view_on_trunk(pair.target) for pair in pairs]
    sources = tuple(
        bisect_right(starts, target.start) - 1 - pair.horizon
        for pair, target in zip(pairs, targets, strict=True)
        if target is not None
    )
    return EncodedSolution(
        example.with_pairs(pairs)._replace(labels=(labelled,)), tuple(text[a:b] for a, b in spans), sources
    )


def collect_readings(
    model: Any,
    collator: Callable[[list[Example]], Batch],
    examples: Sequence[Example],
    vocabulary: int,
    batch_size: int = 16,
    advance: Advance = lambda count: None,
) -> list[Reading]:
    """States of both views of every pair, and the likelihood of every solution.

    Targets are encoded by the model itself, also where an EMA encoder did that in training.

    Args:
        model: a causal LM on its device, bare or inside PEFT, with its predictor head if it has one; it runs in evaluation
            mode.
        collator: a `ForestCollator` or `TwoPassCollator` with the model's predictors, whose targets are not separate.
        vocabulary: V of the LM softmax.
        batch_size: solutions a batch.

    Raises:
        StatesNotFinite: some states are.
    """
    order = sorted(range(len(examples)), key=lambda number: -len(examples[number].trunk))
    found: dict[int, Reading] = {}
    with _evaluating(model):
        for start in range(0, len(order), batch_size):
            numbers = order[start : start + batch_size]
            read = _read_batch(model, collator, [examples[number] for number in numbers], vocabulary)
            found.update(zip(numbers, read, strict=True))
            advance(len(numbers))
    for one in found.values():
        finite = one.source_states.isfinite().all() and one.target_states.isfinite().all()
        if not finite or not np.isfinite(one.log_likelihood):
            raise StatesNotFinite(
                "the model's states are not finite; its weights are broken, or --dtype is too short for them"
            )
    return [found[number] for number in range(len(examples))]


@torch.no_grad()
def _read_batch(
    model: Any, collator: Callable[[list[Example]], Batch], examples: list[Example], vocabulary: int
) -> list[Reading]:
    inner: Any = causal_lm(model)
    device = inner.get_input_embeddings().weight.device
    batch = collator(examples).to(device)
    states_TD = row_states(inner, batch.rows)
    if batch.views is not None:
        states_TD = torch.cat([states_TD, row_states(inner, batch.views)])
    source_PD = read_vectors(states_TD, batch.sources).float()
    predictor = predictor_head(inner)
    source_PD = (source_PD if predictor is None else predictor(source_PD)).cpu()
    target_PD = read_vectors(states_TD, batch.targets).float().cpu()
    head, labels = output_head(inner, vocabulary), [len(label_indices(example)[0]) for example in examples]
    pairs = [len(example.pairs) for example in examples]
    predicting = states_TD.index_select(0, batch.label_positions).split(labels)
    wanted = batch.label_ids.split(labels)
    losses = [float(head.loss_sum(inner, states, ids)) for states, ids in zip(predicting, wanted, strict=True)]
    sides = zip(source_PD.split(pairs), target_PD.split(pairs), strict=True)
    return [Reading(*both, -loss, count) for both, loss, count in zip(sides, losses, labels, strict=True)]
