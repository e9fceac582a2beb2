"""Plain fine-tuning, ``gamma * LM``: no pairs, only the LM loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stepjepa.data.types import Batch, ForestOutput, LossParts, PairsFound
from stepjepa.objectives.base import ModelView, Objective

if TYPE_CHECKING:
    from stepjepa.data.encode import TokenChat


class Regular(Objective):
    """``--objective regular``; every objective with ``--lbd 0`` trains exactly like it."""

    name = "regular"
    takes_text = True
    makes_pairs = False
    # With `lbd` 0, the options may ask for predictors and pairs, which are ignored here.
    reads = ()
    part_names = ()
    predictors = 0
    one_pair = False
    separate_targets = False

    def check(self) -> None:
        """Accept all options: none of them is read."""

    def pairs_of(self, chat: TokenChat) -> PairsFound:
        """No pairs."""
        return PairsFound()

    def pairs_of_text(self, trunk: np.ndarray) -> PairsFound:
        """No pairs of the tokens (T,)."""
        return PairsFound()

    def loss(self, output: ForestOutput, batch: Batch, view: ModelView, step: int) -> LossParts:
        """No parts."""
        return {}
