"""A step of the answer predicts a later step (Step-JEPA).

Step i's view is everything up to its last token; a branch of predictors hangs behind it. Step i + h stands alone in a copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from stepjepa.data.types import Example, Pair, PairsFound
from stepjepa.objectives.base import Objective, PairBuilder

if TYPE_CHECKING:
    from stepjepa.data.encode import TokenChat


class StepJEPA(Objective):
    """``--objective step_jepa``: step i -> step i + h inside every answer.

    ``last_token`` counts from the end of a step: -1 is its last token, the one that holds the end of its separator.
    """

    name = "step_jepa"
    needs_steps = True
    forwards = ("packed", "two_pass", "inline")
    defaults = {"predictors": 2}
    stream = 3

    @property
    def pairing(self) -> Mapping[str, Any]:
        """See `Objective`."""
        options = self.options
        return {**super().pairing, "pairs": options.step_pairs, "horizons": options.horizons, "one": self.one_pair}

    @property
    def one_pair(self) -> bool:
        """See `Objective`; of random pairs one is drawn anyway."""
        return super().one_pair and not self.draws

    @property
    def draws(self) -> bool:
        """Whether one of an example's pairs is drawn every epoch."""
        return self.options.step_pairs == "random"

    def pairs_of(self, chat: TokenChat) -> PairsFound:
        """By source, and then by horizon."""
        options, builder = self.options, PairBuilder(chat.ids, self.predictors)
        reason = "fewer_than_two_steps"
        back = -1 if options.last_token is None else options.last_token
        for turn in chat.turns:
            steps = turn.steps
            if len(steps) >= 2 and len(steps) <= min(options.horizons):
                reason = "horizon_beyond_answer"
            for number, (start, stop) in enumerate(steps[:1] if options.step_pairs == "first" else steps):
                for horizon in options.horizons:
                    if number + horizon >= len(steps):
                        continue
                    later = steps[number + horizon]
                    if start == stop or later.start == later.stop:
                        reason = "empty_view"
                    elif stop + back < start or later.stop + back < later.start:
                        reason = "view_shorter_than_last_token"
                    else:
                        source = builder.branch(stop - 1, stop + back)
                        target = builder.copy(later.start, later.stop, later.stop + back)
                        builder.pairs.append(Pair(source, target, horizon=horizon))
        return builder.found(reason)

    def draw(self, example: Example, rng: np.random.Generator) -> Example:
        """One of its pairs."""
        if not self.draws or len(example.pairs) < 2:
            return example
        return example.with_pairs([example.pairs[int(rng.integers(len(example.pairs)))]])
