"""The first part of a token sequence predicts the rest, as in the published nanoGPT code.

    gamma * LM + lambda * d(u, stop(v))     u: state of the first part, v: state of the rest

    source    trunk [0, cut), followed by predictors
    target    [cut, T) as a separate sequence, with positions from 0

It takes both chats and plain text, and by default the targets have no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepjepa.config.option import Topic, option
from stepjepa.data.options import VIEWS
from stepjepa.data.types import ISOLATED, Pair, PairsFound, Segment, Span
from stepjepa.objectives.base import Objective
from stepjepa.objectives.options import Defaults, MaskOptions

if TYPE_CHECKING:
    from stepjepa.data.encode import TokenChat


@dataclass
class SplitOptions(Topic):
    """Options of objective `split`."""

    split_ratio: float = option(
        0.5, "split: share of the tokens that is the source.", VIEWS, above=0, below=1
    )


class Split(Objective):
    """``--objective split``: cut at ``max(2, int(T * split_ratio))``; the rest must have at least two tokens."""

    name = "split"
    takes_text = True
    reads = (*Objective.reads, MaskOptions)
    defaults = Defaults(predictors=1, labels="all", target_grad=False)
    Options = SplitOptions

    def pairs_of(self, chat: TokenChat) -> PairsFound:
        """As `pairs_of_text`, for the tokens of the entire chat."""
        return self.pairs_of_text(chat.trunk)

    def pairs_of_text(self, trunk: np.ndarray) -> PairsFound:
        """One pair of the tokens (T,), or the reason why there is none."""
        length = len(trunk)
        cut = max(2, int(length * self.options.split_ratio))
        if length - cut < 2:
            return PairsFound(reason="too_short_to_split")
        builder = self.builder(trunk)
        source = builder.source(Span(0, cut))
        target_token = builder.readout_token(Span(cut, length))
        if source is None or target_token is None:
            return PairsFound(reason="view_shorter_than_last_token")
        # The source is on the trunk, which goes on after the cut; the target starts over at position 0.
        rest = Segment(trunk[cut:].copy(), ISOLATED, 0, origin=cut)
        target = builder.alone(rest, target_token - cut)
        builder.pairs.append(Pair(source, target))
        return builder.found("")
