"""The numbers of a model in the page of ``stepjepa inspect``: cosines, losses and attention of the rows that are shown."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from stepjepa.errors import ConfigError
from stepjepa.inspect.attention import attention_data, choose_maps, maps_in_words
from stepjepa.inspect.model import RowRecord
from stepjepa.inspect.page_data import pair_cosines
from stepjepa.modeling.load import is_preset
from stepjepa.modeling.probe import Probe, attention_fits, load_probe, row_numbers

_BATCH = {
    "input_ids": "ids",
    "position_ids": "positions",
    "example": "examples",
    "segment": "segments",
    "order": "orders",
    "attach": "attaches",
    "floor": "floors",
}


def wants_model(options: Any) -> bool:
    """Whether the page gets a model's numbers: asked for, or a local folder with one."""
    if options.run_model is not None:
        return bool(options.run_model)
    return os.path.isdir(options.model_name) and not is_preset(options.model_name)


class ModelNumbers:
    """A model and what is said about it.

    Args:
        options: of the command.
        tokenizer: of the model.
        predictors: largest K that is shown; `same`: it is one predictor, K times.

    Raises:
        ConfigError: it cannot be loaded, takes no mask, or has no such layer.
    """

    def __init__(self, options: Any, tokenizer: Any, predictors: int, same: bool):
        self.size = len(tokenizer)
        self.probe: Probe = load_probe(
            options.model_name, tokenizer, min(predictors, 1) if same else predictors, options.seed
        )
        self.asked = options.attention_layers
        layers = self.probe.layers
        wrong = [layer for layer in self.asked or () if not 1 <= layer <= layers]
        if wrong:
            raise ConfigError(f"--attention_layers {wrong[0]}: this model has layers 1 to {layers}")
        self.notes = []
        if is_preset(options.model_name):
            self.notes.append(
                f"{options.model_name} is a preset: its weights are random (seed {options.seed}), its numbers mean nothing"
            )
        elif predictors and not self.probe.known:
            self.notes.append(
                "the model has no predictor tokens (training writes them next to it, to predictors.safetensors): they get "
                f"new random embeddings (seed {options.seed}), so cosines read at a predictor say little"
            )

    def of_rows(self, records: Sequence[RowRecord], room: int) -> tuple[list[dict[str, Any]], list[str]]:
        """For each row what the page shows (`inspect.page_data.Variant.model`), and what there is to say.

        Args:
            room: bytes that the attention may take.
        """
        given, said = [], []
        for record in records:
            numbers, words = self._row(record, room // len(records))
            given.append(numbers)
            said.append(words)
        return given, list(dict.fromkeys(said))

    def _row(self, record: RowRecord, room: int) -> tuple[dict[str, Any], str]:
        """Losses and cosines always; attention where it fits."""
        probe = self.probe
        row = {name: torch.from_numpy(getattr(record, own).copy())[None] for name, own in _BATCH.items()}
        row["input_ids"] = self._own_ids(row["input_ids"])
        labelled = torch.from_numpy(np.flatnonzero(record.labelled))
        kept = choose_maps(probe.layers, probe.heads, int(record.visible.sum()), room, self.asked)
        wanted = bool(kept) and attention_fits(probe, len(record))
        try:
            numbers = row_numbers(probe, row, labelled - 1, row["input_ids"][0, labelled], wanted)
        except ConfigError as error:
            return {}, f"no numbers of the model: {error}"
        given: dict[str, Any] = {
            "ids": row["input_ids"][0].tolist(),
            "losses": [_rounded(loss) for loss in numbers.losses.tolist()],
            "cosines": [_rounded(value) for value in pair_cosines(record, numbers.states.numpy())],
        }
        if kept and not wanted:
            return given, f"no attention: {len(record)} tokens are too many to hold it for every layer"
        if wanted and len(numbers.attention) != probe.layers:
            return given, "no attention: this model gives none"
        if wanted:
            weights = [layer.numpy() for layer in numbers.attention]
            given["attention"] = attention_data(weights, record.visible, kept)
        return given, maps_in_words(kept, probe.layers, probe.heads)

    def _own_ids(self, ids: torch.Tensor) -> torch.Tensor:
        """The model's ids: its predictors need not lie right behind the tokenizer's vocabulary."""
        own = ids.clone()
        for number, index in enumerate(self.probe.predictor_ids):
            own[ids == self.size + number] = index
        return own


def _rounded(value: float) -> float | None:
    """Four digits behind the point; None for what is no number."""
    return round(value, 4) if np.isfinite(value) else None
