"""Plain fine-tuning: no pairs, and the LM loss alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stepjepa.data.types import Batch, ForestOutput, LossParts, PairsFound
from stepjepa.objectives.base import ModelView, Objective

if TYPE_CHECKING:
    from stepjepa.data.encode import TokenChat


class Regular(Objective):
    """``--objective regular``; also what every objective trains like with ``--lbd 0``."""

    name = "regular"
    takes_text = True
    makes_pairs = False
    reads = ()
    part_names = ()
    predictors = 0
    one_pair = False
    separate_targets = False

    def check(self) -> None:
        """Nothing is read, so nothing can be wrong."""

    def pairs_of(self, chat: TokenChat) -> PairsFound:
        """None."""
        return PairsFound()

    def pairs_of_text(self, trunk: np.ndarray) -> PairsFound:
        """None, of (T,) tokens."""
        return PairsFound()

    def loss(self, output: ForestOutput, batch: Batch, view: ModelView, step: int) -> LossParts:
        """Nothing."""
        return {}
