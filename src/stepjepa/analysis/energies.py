"""The JEPA energy of the steps of solutions: how far the prediction that is read behind a step lies from the next step.

Steps, views and readouts are those of training (``step_jepa`` with every pair), and so is the forward pass: one packed pass
gives the states of both views and the likelihood of the solution.

Shapes: P pairs, D width, V vocabulary.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from stepjepa.data.chat import ChatRenderer
from stepjepa.data.encode import EncodeOptions, PlacedRow, make_encoder, read_chat
from stepjepa.data.report import DataReport
from stepjepa.data.sources import RowSource
from stepjepa.data.tokens import encode_texts, token_span
from stepjepa.data.types import Batch, Example
from stepjepa.errors import DataError
from stepjepa.forest.layout import label_indices
from stepjepa.modeling.extras import predictor_head
from stepjepa.modeling.forward import causal_lm, read_vectors, row_states
from stepjepa.modeling.logits import output_head

Distance = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # of (P, D) and (P, D), (P,)


@dataclass(frozen=True)
class EncodedSolution:
    """A solution as training would read it.

    Attributes:
        example: labels and pairs are those of the solution alone, not of answers before it.
        steps: their texts, separators included.
        sources: for each pair of the example, the place of its source among the steps.
    """

    example: Example
    steps: tuple[str, ...]
    sources: tuple[int, ...]


@dataclass(frozen=True)
class Readings:
    """What a model makes of solutions.

    Attributes:
        source_states, target_states: (P, D) float32, the pairs of all solutions one behind the other.
        counts: pairs of each solution.
        log_likelihoods: summed over the tokens of each solution and its end of turn, nats.
        tokens: how many they are.
    """

    source_states: torch.Tensor
    target_states: torch.Tensor
    counts: list[int]
    log_likelihoods: list[float]
    tokens: list[int]


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
    advance: Callable[[int], None] = lambda count: None,
) -> Readings:
    """States of both views of every pair, and the likelihood of every solution.

    Targets are encoded by the model itself, also where an EMA encoder did that in training.

    Args:
        model: a causal LM on its device, bare or inside PEFT, with its predictor head if it has one; it runs in evaluation
            mode.
        collator: a `ForestCollator` or `TwoPassCollator` with the model's predictors, whose targets are not separate.
        vocabulary: V of the LM softmax.
        batch_size: solutions a batch.
        advance: told after each batch how many solutions were done.

    Raises:
        DataError: states that are not finite.
    """
    order = sorted(range(len(examples)), key=lambda place: -len(examples[place].input_ids))
    found: dict[int, tuple[torch.Tensor, torch.Tensor, float, int]] = {}
    training = model.training
    model.eval()
    try:
        for start in range(0, len(order), batch_size):
            places = order[start : start + batch_size]
            read = _read_batch(model, collator, [examples[place] for place in places], vocabulary)
            found.update(zip(places, read, strict=True))
            advance(len(places))
    finally:
        model.train(training)
    sources, targets, likelihoods, tokens = zip(*(found[place] for place in range(len(examples))), strict=True)
    readings = Readings(
        torch.cat(sources), torch.cat(targets), [len(one) for one in sources], list(likelihoods), list(tokens)
    )
    finite = readings.source_states.isfinite().all() and readings.target_states.isfinite().all()
    if not finite or not np.isfinite(likelihoods).all():
        raise DataError("the model's states are not finite; its weights are broken, or --dtype is too short for them")
    return readings


@torch.no_grad()
def _read_batch(
    model: Any, collator: Callable[[list[Example]], Batch], examples: list[Example], vocabulary: int
) -> list[tuple[torch.Tensor, torch.Tensor, float, int]]:
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
    losses = [
        float(head.loss_sum(inner, states, ids))
        for states, ids in zip(predicting, batch.label_ids.split(labels), strict=True)
    ]
    sides = zip(source_PD.split(pairs), target_PD.split(pairs), strict=True)
    return [(*both, -loss, count) for both, loss, count in zip(sides, losses, labels, strict=True)]


def shuffled_energies(
    distance: Distance, source_PD: torch.Tensor, target_PD: torch.Tensor, groups_P: np.ndarray, count: int, seed: int
) -> np.ndarray:
    """Mean energy of each source against targets that are not its own, (P,) float64; nan where there are none.

    These are the ones of other groups (questions) among `count` targets that are drawn from all once, so that every source
    is held against the same ones, its own question's aside.

    Args:
        distance: of (P, D) sources and (P, D) targets, (P,).
        groups_P: (P,), which question a pair is of.
        count: targets that are drawn at most.
        seed: of the draw.
    """
    pairs = len(groups_P)
    drawn = np.random.default_rng(seed).permutation(pairs)[:count]
    total, other = np.zeros(pairs), np.zeros(pairs, np.int64)
    for place in drawn.tolist():
        apart = groups_P != groups_P[place]
        energies = distance(source_PD, target_PD[place].expand_as(source_PD)).double().numpy()
        total += np.where(apart, energies, 0.0)
        other += apart
    return np.where(other > 0, total / np.maximum(other, 1), np.nan)
