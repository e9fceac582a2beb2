"""Attention weights of a row in few bytes: which layers and heads a page holds, and how they are written.

Only the weights of visible pairs are kept, row by row. A weight p in [0, 1] becomes the byte ``round(255 sqrt(p))``: finer
where weights are small, and never off by more than 0.004.

Shapes: H heads, L positions of a row, V visible pairs.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class Map(NamedTuple):
    """One picture of attention: a head of a layer, both from 1 on; head None is the mean over the heads."""

    layer: int
    head: int | None


def choose_maps(layers: int, heads: int, visible: int, room: int, asked: Sequence[int] | None = None) -> list[Map]:
    """The maps that fit, in order: all heads of all layers and their means, or as many as fit of the means first, then of
    the heads, the last layers first.

    Args:
        layers, heads: of the model.
        visible: V.
        room: bytes of base64 that may be used.
        asked: layers, from 1 on, that are wanted alone.
    """
    wanted = sorted(set(asked), reverse=True) if asked else list(range(layers, 0, -1))
    maps = [Map(layer, None) for layer in wanted]
    maps += [Map(layer, head) for layer in wanted for head in range(1, heads + 1)]
    return sorted(maps[: max(room // _written(visible), 0)], key=lambda kept: (kept.layer, kept.head or 0))


def maps_in_words(kept: Sequence[Map], layers: int, heads: int) -> str:
    """What of a model's attention is shown."""
    if not kept:
        return f"attention: none of {layers} layers x {heads} heads, one alone would make the page too large"
    single = [found.layer for found in kept if found.head is not None]
    whole = [layer for layer in sorted(set(single)) if single.count(layer) == heads]
    parts = [layer for layer in sorted(set(single)) if layer not in whole]
    words = []
    if whole:
        words.append(f"all {heads} heads of {_layers(whole)}")
    words += [f"{single.count(layer)} of {heads} heads of layer {layer}" for layer in parts]
    means = [found.layer for found in kept if found.head is None and found.layer not in whole]
    if means:
        words.append(f"the mean over the heads of {_layers(means)}")
    left = layers - len({found.layer for found in kept})
    return f"attention: {'; '.join(words)}" + (f"; nothing of {left} other layer{'s' * (left > 1)}" if left else "")


def attention_data(attention: Sequence[np.ndarray], visible: np.ndarray, kept: Sequence[Map]) -> dict[str, Any]:
    """The maps `kept`, for a page.

    Args:
        attention: for each layer (H, L, L) float32.
        visible: (L, L) bool.

    Returns:
        ``maps``: [layer, head] of each, head None for the mean; ``weights``: base64 of their V bytes each, one map behind
        the other.
    """
    pieces = []
    for layer, head in kept:
        weights = attention[layer - 1]
        chosen = weights.mean(0) if head is None else weights[head - 1]
        pieces.append(np.rint(255 * np.sqrt(np.clip(chosen[visible], 0, 1))).astype(np.uint8))
    packed = np.concatenate(pieces) if pieces else np.zeros(0, np.uint8)
    return {"maps": [list(found) for found in kept], "weights": base64.b64encode(packed.tobytes()).decode()}


def _written(visible: int) -> int:
    """Bytes of a map in base64."""
    return -(-max(visible, 1) * 4 // 3) + 24


def _layers(numbers: Sequence[int]) -> str:
    """``layer 3``, ``layers 1, 2, 5-9``."""
    edges = [n for n in numbers if n - 1 not in numbers], [n for n in numbers if n + 1 not in numbers]
    runs = [f"{a}-{b}" if a != b else str(a) for a, b in zip(*edges, strict=True)]
    return f"layer{'s' * (len(numbers) > 1)} {', '.join(runs)}"
