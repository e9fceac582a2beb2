"""A step of the answer predicts a later step (Step-JEPA).

    gamma * LM + lambda * mean over pairs of d(u_i, v_{i+h})
    u_i: state after step i        v_{i+h}: state of step i + h

The view of step i is everything up to its last token, followed by a branch of predictors. Step i + h is an isolated copy.
With `plan`, the question is step 0 of its answer: its view is everything up to the token before the answer. With several
horizons, each has its own group of predictor tokens, and so its own branch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from stepjepa.config.option import Names, option
from stepjepa.data.options import VIEWS, StepsOptions
from stepjepa.data.types import Example, PairsFound, Span
from stepjepa.errors import ConfigError
from stepjepa.objectives.base import Objective
from stepjepa.objectives.options import Defaults, ReplayOptions, TargetOptions
from stepjepa.objectives.pairs import question_and_answer

if TYPE_CHECKING:
    from stepjepa.data.encode import TokenChat


@dataclass
class StepJEPAOptions(StepsOptions):
    """Options of objective `step_jepa`."""

    step_pairs: Literal["first", "all", "random", "plan"] = option(
        "first",
        "step_jepa: the source is the first step, every step, or one step sampled again for every example and epoch; with "
        "plan, the question predicts steps 1 to H.",
        VIEWS,
    )
    horizon: int = option(
        1,
        "step_jepa: step i predicts step i + horizon; with step_pairs plan, H.",
        VIEWS,
        at_least=1,
        at_most=1000,
    )
    multi_horizon: list[int] | None = option(
        None, "step_jepa: several horizons at once, as in 1 2 3.", VIEWS, at_least=1
    )

    @property
    def horizons(self) -> tuple[int, ...]:
        """All values of h in step i -> step i + h; with `plan` the question is step 0."""
        if self.multi_horizon:
            return tuple(self.multi_horizon)
        return tuple(range(1, self.horizon + 1)) if self.step_pairs == "plan" else (self.horizon,)

    def check(self) -> None:
        """As `Topic.check`; raises ConfigError."""
        if self.horizon != 1 and self.multi_horizon:
            raise ConfigError(
                f"{_NAME.horizon} and {_NAME.multi_horizon} are both set; give only one of them"
            )
        if len(set(self.horizons)) < len(self.horizons):
            raise ConfigError(
                f"{_NAME.multi_horizon} is {list(self.horizons)}; give each number of steps only once"
            )


_NAME = Names(StepJEPAOptions)


class StepJEPA(Objective):
    """``--objective step_jepa``: step i -> step i + h inside every answer, or the question -> step h.

    `PairBuilder.source` and `PairBuilder.readout_token` (`objectives.pairs`) decide at which token a step is read, and
    `data.tokens.token_span` decides which token ends it. ``last_token`` counts from the end of a step: -1 is its last token,
    which contains the end of its separator. With predictors, the source is read at the last of them instead.
    """

    name = "step_jepa"
    needs_steps = True
    reads = (*Objective.reads, TargetOptions, ReplayOptions)
    forwards = ("packed", "two_pass", "inline")
    defaults = Defaults(predictors=2)
    Options = StepJEPAOptions
    stream = 3

    @property
    def one_pair(self) -> bool:
        """See `Objective`."""
        # Random pairs need no cut here: `draw` keeps one of them.
        return super().one_pair and not self.draws

    @property
    def several_pairs(self) -> bool:  # type: ignore[override]
        options = self.options
        return options.step_pairs == "all" or (not self.draws and len(options.horizons) > 1)

    @property
    def groups(self) -> tuple[int, ...]:  # type: ignore[override]
        """One for each horizon."""
        return self.options.horizons

    def check(self) -> None:
        """As `Objective.check`; raises ConfigError."""
        super().check()
        options = self.options
        if options.forward == "inline" and (
            options.step_pairs in ("all", "plan") or len(options.horizons) > 1
        ):
            raise ConfigError(
                "forward=inline holds one pair per example (a second one would see the predictors of the first); use "
                f"{_NAME.step_pairs} first or random and one {_NAME.horizon}, or forward packed"
            )

    @property
    def draws(self) -> bool:  # type: ignore[override]
        """Whether one of an example's pairs is sampled every epoch."""
        return self.options.step_pairs == "random"

    def pairs_of(self, chat: TokenChat) -> PairsFound:
        """All pairs of every answer, ordered by source, then by horizon."""
        options, plan = self.options, self.options.step_pairs == "plan"
        turns, reason = (
            question_and_answer(chat.turns) if plan else (chat.turns, "fewer_than_two_steps")
        )
        builder = self.builder(chat.ids, chat.target_ids)
        for turn in turns:
            steps = turn.steps
            # The question's view ends where the answer begins, so it includes the markup between them.
            if plan and turn.user is not None:
                steps = (Span(turn.user.start, turn.answer.start), *steps)
            if len(steps) >= 2 and len(steps) <= min(options.horizons):
                reason = "horizon_beyond_answer"
            # `random` collects all pairs here; `draw` picks one of them every epoch.
            for number, step in enumerate(
                steps[:1] if plan or options.step_pairs == "first" else steps
            ):
                for group, horizon in enumerate(options.horizons):
                    if number + horizon >= len(steps):
                        continue
                    later = steps[number + horizon]
                    # A step may have no token, if its last character was merged into the next step's first token.
                    if step.start == step.stop or later.start == later.stop:
                        reason = "empty_view"
                    elif not builder.pair(step, later, horizon=horizon, group=group):
                        reason = "view_shorter_than_last_token"
        return builder.found(reason)

    def draw(self, example: Example, rng: np.random.Generator) -> Example:
        """The example with one of its pairs, if they are sampled."""
        if not self.draws or len(example.pairs) < 2:
            return example
        return example.with_pairs([example.pairs[int(rng.integers(len(example.pairs)))]])
