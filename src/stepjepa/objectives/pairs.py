"""From the turns of a tokenised chat to pairs of views.

Shapes: T tokens of a chat, S of a target text.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepjepa.data.types import (
    ISOLATED,
    MASKED,
    TRUNK,
    Example,
    Pair,
    PairsFound,
    Read,
    Segment,
    Span,
    Turn,
)


class PairBuilder:
    """Collects the pairs of one chat. Sources with the same end share a branch, targets with the same tokens a copy.

    Args:
        ids: (T,) tokens of the chat, truncated or not.
        predictors: K; with 0 a source is read on the trunk.
        last_token: see `readout_token`; None for a view's last token.
        mean: read a view as the mean of its tokens' states; a view with predictors is still read at the last of them.
        layer: see `Read`.
        target: (S,) int32 tokens of a text that is the target of every `pair`; None if the targets are views of the chat.
        masks: whether a source is a branch with a copy of its view, in which `masked` hides tokens.
    """

    def __init__(
        self,
        ids: np.ndarray,
        predictors: int,
        last_token: int | None = None,
        mean: bool = False,
        layer: int | None = None,
        target: np.ndarray | None = None,
        masks: bool = False,
    ):
        self.ids, self.predictors, self.last_token = ids, predictors, last_token
        self.mean, self.layer, self.target, self.masks = mean, layer, target, masks
        self.pairs: list[Pair] = []
        self._segments: list[Segment] = []
        self._branches: dict[tuple[int, int], int] = {}
        self._copies: dict[tuple[int, int], int] = {}

    def pair(
        self, source: Span, target: Span, close: int | None = None, horizon: int = 1, group: int = 0
    ) -> bool:
        """Add the pair of two views on the trunk. The target is a `copy`, or the builder's target text in its place.

        Args:
            close: the end from which `last_token` counts back in the source, see `readout_token`. The target has no such
                argument: its copy has only the tokens of its view, so the view itself must extend to that end.
            horizon, group: see `Pair`.

        Returns:
            Whether it was added; False if a view is too short for `last_token`.
        """
        text = self.target
        view = target if text is None else Span(0, len(text))
        target_token = self.readout_token(view)
        if target_token is None:
            return False
        source_read = self.source(source, close, group)
        if source_read is None:
            return False
        # All pairs share one segment for the text, in the place of the first target.
        if text is not None and view not in self._copies:
            segment = Segment(text, ISOLATED, target.start + self.predictors)
            self._copies[view] = self.add(segment)
        target_read = self.copy(*view, target_token)
        self.pairs.append(Pair(source_read, target_read, horizon=horizon, group=group))
        return True

    def read(self, segment: int, token: int, view: Span | None = None) -> Read:
        """The state of a token of a segment; with `mean`, the mean over `view`, the span of tokens that the
        token stands for."""
        read = (
            Read.mean(segment, view) if self.mean and view is not None else Read.one(segment, token)
        )
        return read._replace(layer=self.layer)

    def readout_token(self, view: Span, close: int | None = None) -> int | None:
        """The token at which a view without predictors is read: its last, or the one at `last_token` from `close` (default:
        the view's end). None if that is before the view."""
        if self.last_token is None:
            return view.stop - 1
        token = (view.stop if close is None else close) + self.last_token
        return token if token >= view.start else None

    def source(self, view: Span, close: int | None = None, group: int = 0) -> Read | None:
        """Add a source view, which is on the trunk. It is read at the last of K predictor tokens after it, regardless of
        `last_token`; without predictors at the view's `readout_token`, None if that is before the view."""
        token = view.stop - 1 if self.predictors else self.readout_token(view, close)
        if token is None:
            return None
        # Hiding tokens on the trunk would change the LM loss, so a masked source is a copy that sees what precedes the view.
        if self.masks:
            start = view.start
            ids = self.ids[start : token + 1]
            content = Span(0, min(view.stop, token + 1) - start)
            copy = Segment(ids, start - 1, start, group, self.predictors, len(ids), start, content)
            return self.alone(copy, copy.length - 1)
        if not self.predictors:
            return self.read(TRUNK, token, view)
        number = self._branches.get((view.stop, group))
        if number is None:
            # Only predictors, no ids; they are filled in when the example is laid out.
            branch = Segment(
                np.zeros(0, np.int32), view.stop - 1, view.stop, group, self.predictors
            )
            number = self.add(branch)
            self._branches[view.stop, group] = number
        return self.read(number, self.predictors - 1)

    def copy(self, start: int, stop: int, token: int) -> Read:
        """Token `token` of the trunk, read in an isolated copy of the trunk's tokens [start, stop).

        Its positions are those of the trunk plus K, as if the predictors were in the sequence. Only these agree with
        `two_pass` and `inline` in models with learned absolute positions, and several sources can share the copy.

        `analysis.prediction.walks_of` relies on the copy of a step: its last token, stop - 1, is also the last token of the
        view that is the next pair's source, which lets `walks_of` follow an answer from pair to pair.
        """
        number = self._copies.get((start, stop))
        if number is None:
            ids = self.ids[start:stop]
            number = self._copies[start, stop] = self.add(
                Segment(ids, ISOLATED, start + self.predictors, origin=start)
            )
        return self.read(number, token - start, Span(0, stop - start))

    def alone(self, segment: Segment, token: int) -> Read:
        """Add a view that is a separate segment and is read at its token `token`."""
        return self.read(
            self.add(segment), token, None if segment.slots else Span(0, segment.length)
        )

    def add(self, segment: Segment) -> int:
        """Add a segment; returns its number."""
        self._segments.append(segment)
        # Number 0 is the trunk.
        return len(self._segments)

    def found(self, reason: str) -> PairsFound:
        """The collected pairs; if there are none, the reason."""
        return PairsFound(
            tuple(self._segments), tuple(self.pairs), reason=None if self.pairs else reason
        )


def question_and_answer(turns: Sequence[Turn]) -> tuple[list[Turn], str]:
    """The turns whose question and answer have tokens, and the reason to report if there are no such turns."""
    usable, reason = [], "no_user_message"
    for turn in turns:
        if turn.user is None:
            continue
        if turn.user.start == turn.user.stop or turn.answer.start == turn.answer.stop:
            reason = "empty_view"
            continue
        usable.append(turn)
    return usable, reason


def masked(example: Example, ratio: float, one_span: bool, rng: np.random.Generator) -> Example:
    """The example with a share `ratio` of each view's maskable tokens masked: single tokens, or one span."""
    segments = []
    for segment in example.segments:
        if segment.maskable is not None:
            start, stop = segment.maskable
            hidden = np.zeros(len(segment.ids), bool)
            hidden[start:stop] = _hidden(stop - start, ratio, one_span, rng)
            segment = segment._replace(ids=np.where(hidden, np.int32(MASKED), segment.ids))
        segments.append(segment)
    return example._replace(segments=tuple(segments))


def _hidden(count: int, ratio: float, one_span: bool, rng: np.random.Generator) -> np.ndarray:
    """Which of `count` tokens are masked, (count,) bool."""
    # Single tokens are masked independently, so their share is `ratio` on average only; a span has its exact length.
    if not one_span:
        return rng.random(count) < ratio
    length = min(count, max(1, round(ratio * count)))
    first = int(rng.integers(count - length, endpoint=True))
    hidden = np.zeros(count, bool)
    hidden[first : first + length] = True
    return hidden
