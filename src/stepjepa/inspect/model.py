"""The numbers of a model on the page: cosines, losses and attention of the rows that are shown.

Only the attention weights of visible pairs are kept, row by row. A weight p in [0, 1] becomes the byte
``round(255 sqrt(p))``: finer where weights are small, and never off by more than 0.004.

Shapes: H heads, L positions of a row, D width, V visible pairs.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stepjepa.errors import ConfigError
from stepjepa.inspect.record import RowRecord, Vector

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Map(NamedTuple):
    """One picture of attention: a head of a layer, both from 1 on; head None is the mean over the heads."""

    layer: int
    head: int | None


class RowNumbers(NamedTuple):
    """What a model gave for a row.

    Attributes:
        record: for the page: ``ids``, ``losses``, ``cosines``, ``attention``; {} where the model refuses the row.
        note: what there is to say about it.
    """

    record: dict[str, Any]
    note: str


def wants_model(name: str, asked: bool | None) -> bool:
    """Whether the page gets a model's numbers: asked for, or by default for a local folder with a model."""
    from stepjepa.modeling.load import is_preset

    return os.path.isdir(name) and not is_preset(name) if asked is None else asked


class ModelNumbers:
    """A model that looks at rows; loads torch.

    Args:
        name: Hub id, folder or preset.
        tokenizer: of the model.
        predictors: largest K that is shown; `same`: it is one predictor, K times.
        seed: of random weights.
        layers: the layers, from 1 on, whose attention is wanted; None for as many as fit.

    Raises:
        ConfigError: it cannot be loaded, takes no mask, or has no such layer.
    """

    def __init__(
        self,
        name: str,
        tokenizer: PreTrainedTokenizerBase,
        predictors: int,
        same: bool,
        seed: int,
        layers: Sequence[int] | None = None,
    ):
        from stepjepa.modeling.load import is_preset
        from stepjepa.modeling.trial import load_probe

        self.size, self.layers = len(tokenizer), layers
        self.probe = load_probe(name, tokenizer, min(predictors, 1) if same else predictors, seed)
        wrong = [layer for layer in layers or () if not 1 <= layer <= self.probe.layers]
        if wrong:
            raise ConfigError(f"--attention_layers {wrong[0]}: this model has layers 1 to {self.probe.layers}")
        self.notes = []
        if is_preset(name):
            self.notes.append(f"{name} is a preset: its weights are random (seed {seed}), its numbers mean nothing")
        elif predictors and not self.probe.known:
            self.notes.append(
                "the model has no predictor tokens (training writes them next to it, to predictors.safetensors): they get "
                f"new random embeddings (seed {seed}), so cosines read at a predictor say little"
            )

    def of_row(self, record: RowRecord, room: int) -> RowNumbers:
        """Losses and cosines; attention where it fits into `room` bytes."""
        import torch

        from stepjepa.modeling.trial import attention_fits, row_numbers

        probe, row = self.probe, record.batch_row()
        for number, index in enumerate(probe.predictor_ids):  # the model's need not follow the tokenizer's vocabulary
            row.input_ids[row.input_ids == self.size + number] = index
        labelled = torch.from_numpy(np.flatnonzero(record.labelled))
        kept = choose_maps(probe.layers, probe.heads, int(record.visible.sum()), room, self.layers)
        wanted = bool(kept) and attention_fits(probe, len(record))
        try:
            numbers = row_numbers(probe, row, labelled - 1, row.input_ids[0, labelled], wanted)
        except ConfigError as error:
            return RowNumbers({}, f"no numbers of the model: {error}")
        given: dict[str, Any] = {
            "ids": row.input_ids[0].tolist(),
            "losses": [_rounded(loss) for loss in numbers.losses.tolist()],
            "cosines": [_rounded(value) for value in pair_cosines(record, numbers.states.numpy())],
        }
        if kept and not wanted:
            return RowNumbers(given, f"no attention: {len(record)} tokens are too many to hold it for every layer")
        if wanted and len(numbers.attention) != probe.layers:
            return RowNumbers(given, "no attention: this model gives none")
        if wanted:
            given["attention"] = attention_data([layer.numpy() for layer in numbers.attention], record.visible, kept)
        return RowNumbers(given, maps_note(kept, probe.layers, probe.heads))


def _rounded(value: float) -> float | None:
    """Four decimals; None for what is no number."""
    return round(value, 4) if np.isfinite(value) else None


def pair_cosines(record: RowRecord, states: np.ndarray) -> list[float]:
    """Cosine of the two states of each pair, or of the two vectors of each of the semantic tube's.

    Args:
        states: (L, D) float32, the last ones of the row's tokens.
    """
    wide = states.astype(np.float64)

    def vector(combined: Vector) -> np.ndarray:
        terms = (term.coefficient * wide[term.index] for term in combined.terms)
        return np.asarray(sum(terms, np.zeros(wide.shape[1])))

    sides = [(wide[pair.source.index], wide[pair.target.index]) for pair in record.pairs]
    sides += [(vector(pair.source), vector(pair.target)) for pair in record.tube]
    lengths = [float(np.linalg.norm(source) * np.linalg.norm(target)) for source, target in sides]
    return [
        float(source @ target) / length if length else 0.0
        for (source, target), length in zip(sides, lengths, strict=True)
    ]


def choose_maps(layers: int, heads: int, visible: int, room: int, asked: Sequence[int] | None = None) -> list[Map]:
    """The maps that fit, in order: means over the heads first, then single heads, each from the last layer backwards.

    Args:
        layers, heads: of the model.
        visible: V.
        room: bytes of base64 that may be used.
        asked: layers, from 1 on, that are wanted alone.
    """
    wanted = sorted(set(asked), reverse=True) if asked else list(range(layers, 0, -1))
    maps = [Map(layer, None) for layer in wanted]
    maps += [Map(layer, head) for layer in wanted for head in range(1, heads + 1)]
    written = -(-max(visible, 1) * 4 // 3) + 24  # bytes of a map in base64
    return sorted(maps[: max(room // written, 0)], key=lambda kept: (kept.layer, kept.head or 0))


def maps_note(kept: Sequence[Map], layers: int, heads: int) -> str:
    """What of a model's attention is shown."""
    if not kept:
        return f"attention: none of {layers} layers x {heads} heads, one alone would make the page too large"
    single = sum(found.head is not None for found in kept)
    shown = sorted({found.layer for found in kept})
    which = "all layers" if len(shown) == layers else f"{len(shown)} of {layers} layers ({', '.join(map(str, shown))})"
    heads *= len(shown)
    return f"attention: {which}, {single:,} of their {heads:,} heads by themselves, and the means over the heads"


def attention_data(attention: Sequence[np.ndarray], visible: np.ndarray, kept: Sequence[Map]) -> dict[str, Any]:
    """The maps `kept`, for a page.

    Args:
        attention: for each layer (H, L, L) float32.
        visible: (L, L) bool.

    Returns:
        ``maps``: [layer, head] of each, head None for the mean; ``weights``: base64 of their V bytes each, one map after
        the other.
    """
    pieces = []
    for layer, head in kept:
        weights = attention[layer - 1]
        chosen = weights.mean(0) if head is None else weights[head - 1]
        pieces.append(np.rint(255 * np.sqrt(np.clip(chosen[visible], 0, 1))).astype(np.uint8))
    packed = np.concatenate(pieces) if pieces else np.zeros(0, np.uint8)
    return {"maps": [list(found) for found in kept], "weights": base64.b64encode(packed.tobytes()).decode()}
