r"""The state just before the final answer, computed without the steps, predicts the same state computed with them.

    ```
    trunk     [question] [step 1] [step 2] [#### ] 72      v: read at the end of the cue, no gradient
    branch              <p> .. <p> [#### ]                 u: the cue after the question, read at its end
    ```

``gamma * LM + lambda * d(u, stop(v))``: the idea of CODI (arXiv:2502.21074), whose student writes latent thoughts where its
teacher, the same model, writes steps, and whose states must agree at the token before the answer. Here K predictor tokens
(by default 0) replace the steps, and nothing is generated. The cue is the result of `data.answers.answer_cue`: ``####``,
``\boxed{``, ``<answer>``, "the answer is". A copy of its tokens follows the prompt, where an answer begins, and both sides
are read at the same token. `step_jepa` predicts a later step from an earlier one; here all steps are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepjepa.config.option import Names, Topic, option
from stepjepa.data.answers import answer_cue
from stepjepa.data.options import VIEWS
from stepjepa.data.types import TRUNK, Pair, PairsFound, Segment, Span
from stepjepa.errors import ConfigError
from stepjepa.objectives.base import Objective
from stepjepa.objectives.options import Defaults, LossOptions, PairOptions, PredictorOptions
from stepjepa.objectives.pairs import question_and_answer

if TYPE_CHECKING:
    from stepjepa.data.encode import TokenChat


@dataclass
class StepsToAnswerOptions(Topic):
    """Options of objective `steps_to_answer`."""

    answer_layers: list[int] | None = option(
        None,
        "steps_to_answer: several layers whose states are compared, numbered as in readout_layer; the loss is their mean.",
        VIEWS,
    )


_NAME = Names(StepsToAnswerOptions, PredictorOptions)


class StepsToAnswer(Objective):
    """``--objective steps_to_answer``; see the top of this file."""

    name = "steps_to_answer"
    reads = (PairOptions, LossOptions, PredictorOptions)
    unread = frozenset({_NAME.last_token, _NAME.target_encoder})
    defaults = Defaults(target_grad=False, jepa_loss="smooth_l1")
    # The targets are read on the trunk, which is computed for the LM loss anyway.
    separate_targets = False
    # With several layers, a shuffled target must be of the source's layer.
    aligned_targets = True
    Options = StepsToAnswerOptions
    vector_names = "without the steps", "with them"

    def check(self) -> None:
        """As `Objective.check`; raises ConfigError."""
        super().check()
        if self.options.answer_layers and self.options.readout_layer is not None:
            raise ConfigError(
                f"{_NAME.answer_layers} and {_NAME.readout_layer} both name layers to read; leave one of them out"
            )

    @property
    def layers(self) -> tuple[int | None, ...]:
        """See `Objective`."""
        several = self.options.answer_layers or ()
        return tuple(None if layer == -1 else layer for layer in several) or super().layers

    def cue_of(self, answer: str) -> tuple[int, int] | None:
        """See `Objective`."""
        return answer_cue(answer)

    def pairs_of(self, chat: TokenChat) -> PairsFound:
        """One pair per layer for every answer with text before its cue."""
        builder = self.builder(chat.ids)
        turns, reason = question_and_answer(chat.turns)
        for turn in turns:
            cue = turn.cue
            start = turn.answer.start
            # Without steps before the cue, both sides would be the same state.
            if cue is None or cue.start in (start, cue.stop):
                reason = "no_answer_cue"
                continue
            ids = chat.ids[cue.start : cue.stop]
            branch = Segment(ids, start - 1, start, slots=self.predictors, origin=cue.start)
            # The view without the predictors, over which a mean is taken.
            copy = Span(self.predictors, branch.length)
            source = builder.read(builder.add(branch), copy.stop - 1, copy)
            target = builder.read(TRUNK, cue.stop - 1, cue)
            for layer in self.layers:
                builder.pairs.append(
                    Pair(source._replace(layer=layer), target._replace(layer=layer))
                )
        return builder.found(reason)
