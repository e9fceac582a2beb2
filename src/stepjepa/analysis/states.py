"""The pairs of a data set, a model's states of their views, and the file that stores these states.

`save_states` writes a safetensors file, which any reader of that format can open:

    source   (L, N, D) float32   states of the source views, layer by layer
    target   (L, N, D) float32   states of the target views; row i of both is a pair
    rows     (N,) int64          row of each pair in `file`, counted from 0

Its metadata has, under ``stepjepa.states``, a JSON object with ``version`` (1), ``model``, ``file``, and ``layers``, a
list of L integers: 0 for the embeddings, i for the output of layer i, -1 for the last hidden state after the final norm.

Shapes: L layers, N pairs, B examples, R rows, T tokens, D width, V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from stepjepa.analysis.options import AnalyzeOptions
from stepjepa.config.option import Names
from stepjepa.data.encode import CHUNK_ROWS, EncodeOptions, make_encoder
from stepjepa.data.report import DataReport, reason_words
from stepjepa.data.sources import RowSource
from stepjepa.data.template import ChatRenderer
from stepjepa.data.types import Batch, Example
from stepjepa.errors import ConfigError, DataError
from stepjepa.forest.collate import TwoPassCollator
from stepjepa.generation.local import eval_mode
from stepjepa.modeling.extras import trained_extras
from stepjepa.modeling.forward import causal_lm, known_layers, layer_states, read_vectors
from stepjepa.modeling.parts import embedding_rows
from stepjepa.objectives.regular import Regular
from stepjepa.objectives.step_jepa import StepJEPA
from stepjepa.training.options import JEPAOptions
from stepjepa.utils.files import replacing
from stepjepa.utils.text import counted

KEY, VERSION = "stepjepa.states", 1
FINAL = -1  # stands for the last hidden state, after the final norm
Advance = Callable[[int], None]  # called after each batch with the number of examples in it
_NAME = Names(AnalyzeOptions)


class StatesNotFinite(DataError):
    """States that are NaN or infinite: the model has diverged, or the range of its dtype is too small."""


@dataclass(frozen=True)
class Pairs:
    """The pairs of a data set, for one tokenizer and one method.

    Attributes:
        file: name of the data set.
        examples: an example per pair, with only that pair.
        rows: (N,) int64, the row of each pair, counted from 0.
        report: the data report of the rows.
    """

    file: str
    examples: tuple[Example, ...]
    rows: np.ndarray
    report: DataReport


def read_pairs(
    rows: RowSource,
    tokenizer: PreTrainedTokenizerBase,
    renderer: ChatRenderer | None,
    options: EncodeOptions,
    max_rows: int | None = None,
) -> Pairs:
    """The pairs of a data set's first rows, in their order.

    Args:
        renderer: None if the tokenizer has no chat template, which plain text does not need.
        options: how a run encodes its rows.
        max_rows: read at most this many rows.

    Raises:
        DataError: no row can be used, or there are fewer than two pairs; with ``strict``, a row cannot be used.
        ConfigError: the tokenizer or the template cannot be used.
    """
    encode = make_encoder(rows, tokenizer, renderer, options)
    report = DataReport(rows.name)
    examples, numbers = list[Example](), list[int]()
    numbered = islice(rows, max_rows)
    while chunk := [(rows.place(number), row) for number, row in islice(numbered, CHUNK_ROWS)]:
        encoded = encode(chunk)
        numbers_of_chunk = report.rows_read + np.arange(len(chunk))
        report.add(encoded.report)
        rows_of_examples = np.repeat(numbers_of_chunk, encoded.counts)
        for row, example in zip(rows_of_examples.tolist(), encoded.store, strict=True):
            for pair in example.pairs:
                examples.append(example.with_pairs([pair]))
                numbers.append(row)
    report.require(report.examples)
    if len(examples) < 2:
        objective = options.objective.name if options.objective else Regular.name
        found = counted(len(examples), "pair")
        message = f"{report.source}: {found} for {objective}; at least two are needed"
        for name, count in report.examples_without_pairs.items():
            message += f"; {count} {reason_words(name)}"
        raise DataError(message)
    return Pairs(rows.name, tuple(examples), np.array(numbers, np.int64), report)


def every_step(method: JEPAOptions) -> JEPAOptions:
    """The options of an objective that pairs every step with the next one, both read at their last token on the trunk.

    All options that do not concern the views are taken from `method`.
    """
    return replace(
        method,
        objective=StepJEPA.name,
        step_pairs="all",
        horizon=1,
        multi_horizon=None,
        last_token=None,
        readout="last",
        readout_layer=None,
        predictors=0,
        forward="packed",
        jepa_target_column=None,
    )


class Walks(NamedTuple):
    """States on the trunk, after the final norm, at the ends of the steps of answers.

    Attributes:
        states: (M, D) float32.
        places: (M, 2) int64, each state's row, and the number of its walk in that row; a walk's states are consecutive.
    """

    states: np.ndarray
    places: np.ndarray

    def pairs(self, horizon: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """For every t whose walk has the steps t - 1, t and t + `horizon`: its row, and the states after them.

        Returns:
            (N,) int64, and three times (N, D) float64.
        """
        first = np.arange(max(len(self.places) - horizon - 1, 0))
        whole = (self.places[first] == self.places[first + horizon + 1]).all(axis=1)
        at = first[whole]
        before, now, later = (
            self.states[at + step].astype(np.float64) for step in (0, 1, horizon + 1)
        )
        return self.places[at, 0], before, now, later


@dataclass(frozen=True)
class States:
    """States of both views in some layers of one model.

    Attributes:
        layers: (L,) numbers: 0 the embeddings, i after layer i, -1 after the final norm.
        rows: (N,) int64, see `Pairs`.
        source, target: (L, N, D) float32.
        walks: states after the steps of every answer; None if they were not requested.
    """

    model: str
    file: str
    layers: tuple[int, ...]
    rows: np.ndarray
    source: np.ndarray
    target: np.ndarray
    walks: Walks | None = None

    def layer(self, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """Source and target of one layer, both (N, D)."""
        index = self.layers.index(layer)
        return self.source[index], self.target[index]


def layers_of(model: nn.Module, layers: Sequence[int] | None = None) -> tuple[int, ...]:
    """The requested layers, each once. None requests all: 0 (the embeddings) to the last layer, and -1 (the final norm).

    Raises:
        ConfigError: the model has no such layer, or its layers cannot be found.
    """
    if layers is not None and set(layers) == {FINAL}:
        return (FINAL,)
    deepest = 0 if layers is None else max(layers)
    try:
        modules, _ = known_layers(causal_lm(model), deepest)
    except ConfigError as error:
        raise ConfigError(f"--{_NAME.layers}: {error}") from None
    every = (*range(len(modules) + 1), FINAL)
    chosen = every if layers is None else tuple(dict.fromkeys(layers))
    if not set(chosen) <= set(every):
        raise ConfigError(f"--{_NAME.layers}: {min(chosen)} is not a layer; -1 is the final norm")
    return chosen


@torch.no_grad()
def read_states(
    model: nn.Module,
    name: str,
    examples: Sequence[Example],
    layers: Sequence[int] = (FINAL,),
    *,
    predictor_ids: Sequence[int] = (),
    pad_token_id: int = 0,
    batch_size: int = 16,
    advance: Advance = lambda count: None,
    head_layer: int | None = FINAL,
) -> np.ndarray:
    """Run a model over examples, and read the states of both views of every pair.

    They are computed in the two-pass form, which needs no mask except for padding, so that every architecture and every
    layer can be read. The other forms give the same states. A predictor head that is part of the model
    (`extras.attach_saved`) is applied to the sources of one layer, as in training. Targets are encoded by the model itself,
    even if an EMA encoder encoded them in training.

    Args:
        model: a causal LM on its device, bare or inside PEFT; it runs in evaluation mode.
        name: name of the model, for messages.
        layers: the result of `layers_of`.
        predictor_ids: ids of the K predictors in their order; if empty, a source is read at its last token.
        head_layer: the layer that the predictor head was trained on; None to leave out the head.

    Returns:
        (2, L, P, D) float32, states of the sources and of the targets of all pairs, in the order of the examples.

    Raises:
        StatesNotFinite: some states are not finite.
    """
    # Targets have separate rows, because they are often much shorter than sources.
    collator = TwoPassCollator(tuple(predictor_ids), pad_token_id, separate_targets=True)
    inner: Any = causal_lm(model)
    device = embedding_rows(inner).device
    predictor = trained_extras(inner).head
    ends = np.cumsum([len(example.pairs) for example in examples])
    views = np.empty(0, np.float32)
    # Rows of similar length in a batch need little padding.
    lengths = [-example.reach(example.pairs[-1], positions=True) for example in examples]
    order = np.argsort(lengths, kind="stable").tolist()
    with eval_mode(model):
        for begin in range(0, len(order), batch_size):
            numbers = order[begin : begin + batch_size]
            batch = collator([examples[number] for number in numbers]).to(device)
            places = np.concatenate(
                [np.arange(ends[n] - len(examples[n].pairs), ends[n]) for n in numbers]
            )
            for index, (sources, targets) in enumerate(_read_layers(inner, batch, layers)):
                if layers[index] == head_layer and predictor is not None:
                    sources = predictor(sources.float(), batch.groups)
                if not len(views):
                    views = np.empty((2, len(layers), ends[-1], sources.shape[1]), np.float32)
                for side, states_PD in enumerate((sources, targets)):
                    views[side, index, places] = states_PD.float().cpu().numpy()
            advance(len(numbers))
    if not np.isfinite(views).all():
        raise StatesNotFinite(
            f"{name}: some states are not finite; the weights are broken, or the range of --{_NAME.dtype} is too small"
        )
    return views


def _read_layers(inner: Any, batch: Batch, layers: Sequence[int]) -> list[list[Tensor]]:
    """States (P, D) of the sources and of the targets of a batch, layer by layer."""
    parts = batch.every_rows
    sizes = [rows.input_ids.numel() for rows in parts]
    sources, targets = batch.sources, batch.targets
    # Positions of targets in separate rows count from the first of these rows.
    if batch.target_rows is not None:
        targets = replace(targets, positions=targets.positions + sum(sizes[:-1]))
    sides = [sources, targets]
    # The trunks are not computed if no view is read in them.
    if min(side.positions.min() for side in sides) >= sizes[0]:
        parts = parts[1:]
        sides = [replace(side, positions=side.positions - sizes[0]) for side in sides]
    wanted = [None if layer == FINAL else layer for layer in layers]
    by_part = [layer_states(inner, rows, wanted) for rows in parts]
    read = []
    for layer in wanted:
        states_TD = torch.cat([by_layer[layer] for by_layer in by_part])
        read.append([read_vectors(states_TD, side) for side in sides])
    return read


def save_states(states: States, path: Path) -> None:
    """Write states atomically; equal states give equal bytes.

    Raises:
        OSError: the file cannot be written; an existing file is unchanged.
    """
    from safetensors.numpy import save_file

    tensors = {"source": states.source, "target": states.target, "rows": states.rows}
    # A single entry, because safetensors writes several entries in any order.
    about = {"model": states.model, "file": states.file}
    header = {"version": VERSION, **about, "layers": list(states.layers)}
    # Written directly to disk, which avoids a copy of several gigabytes in memory.
    with replacing(path) as temporary:
        save_file(tensors, temporary, {KEY: json.dumps(header, ensure_ascii=False)})


def check_alike(states: Mapping[str, States]) -> None:
    """Check that all states belong to the same pairs. Raises DataError: they do not."""
    (label, first), *others = states.items()
    for other, one in others:
        if not np.array_equal(one.rows, first.rows):
            raise DataError(
                f"the pairs of {label} and {other} are of different rows; if the models' tokenizers or numbers of positions "
                f"differ, change --{_NAME.max_length} so that every row fits"
            )
