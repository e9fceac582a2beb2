"""From the turns of a chat in tokens to pairs of views."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepjepa.data.types import ISOLATED, MASKED, TRUNK, Example, Pair, PairsFound, Read, Segment, Span, Turn


class PairBuilder:
    """Collects the pairs of one chat. Sources with the same end share a branch, targets with the same tokens a copy.

    Args:
        ids: tokens of the chat, cut or not.
        predictors: K; with 0 a source is read on the trunk.
        last_token: what `readout` counts; None for a view's last token.
        mean: a view is read as the mean of its tokens' states, but at its predictors' last where it has some.
        layer: see `Read`.
        target: tokens of a text of its own that every `pair` has as its target, (S,) int32.
        masks: a source is a branch with a copy of its view, of which `masked` hides a part.
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

    def pair(self, source: Span, target: Span, close: int | None = None, horizon: int = 1, group: int = 0) -> bool:
        """Add the pair of two views on the trunk: `source`, and the target as a `copy`; or, of a builder with a text for the
        targets, that text at the target's place.

        Args:
            close: see `readout`, of the source.
            horizon, group: see `Pair`.

        Returns:
            Whether it was added: not where a view is too short for `last_token`.
        """
        text = self.target
        view = target if text is None else Span(0, len(text))
        target_token = self.readout(view)
        if target_token is None:
            return False
        source_read = self.source(source, close, group)
        if source_read is None:
            return False
        if text is not None and view not in self._copies:
            segment = Segment(text, ISOLATED, target.start + self.predictors)
            self._copies[view] = self.add(segment)
        target_read = self.copy(*view, target_token)
        self.pairs.append(Pair(source_read, target_read, horizon=horizon, group=group))
        return True

    def read(self, segment: int, token: int, view: Span | None = None) -> Read:
        """The state of a token that stands for its segment's tokens `view`; their mean where views are read so."""
        read = Read.mean(segment, view) if self.mean and view is not None else Read.one(segment, token)
        return read if self.layer is None else read._replace(layer=self.layer)

    def readout(self, view: Span, close: int | None = None) -> int | None:
        """The token that stands for a view: its last, or the one that `last_token` counts from `close` (its end unless
        given); None where that is in front of it."""
        if self.last_token is None:
            return view.stop - 1
        token = (view.stop if close is None else close) + self.last_token
        return token if token >= view.start else None

    def source(self, view: Span, close: int | None = None, group: int = 0) -> Read | None:
        """The last of K predictor tokens behind a view on the trunk, whatever `last_token` says; with none the view's
        `readout`, None where that is in front of it."""
        token = view.stop - 1 if self.predictors else self.readout(view, close)
        if token is None:
            return None
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
            # No tokens but the predictors, which are filled in when the example is laid out.
            branch = Segment(np.zeros(0, np.int32), view.stop - 1, view.stop, group, self.predictors)
            number = self.add(branch)
            self._branches[view.stop, group] = number
        return self.read(number, self.predictors - 1)

    def copy(self, start: int, stop: int, readout: int) -> Read:
        """Token `readout` in an isolated copy of the trunk's tokens [start, stop), at the positions where these would be
        behind the predictors."""
        number = self._copies.get((start, stop))
        if number is None:
            ids = self.ids[start:stop]
            number = self._copies[start, stop] = self.add(Segment(ids, ISOLATED, start + self.predictors, origin=start))
        return self.read(number, readout - start, Span(0, stop - start))

    def alone(self, segment: Segment, readout: int) -> Read:
        """Add a view that is a segment of its own, which is read at token `readout`."""
        return self.read(self.add(segment), readout, None if segment.slots else Span(0, segment.length))

    def add(self, segment: Segment) -> int:
        """Add a segment; its number."""
        self._segments.append(segment)
        return len(self._segments)

    def found(self, reason: str) -> PairsFound:
        """What was collected, or the reason why there is nothing."""
        return PairsFound(tuple(self._segments), tuple(self.pairs), reason=None if self.pairs else reason)


def question_and_answer(turns: Sequence[Turn]) -> tuple[list[Turn], str]:
    """The turns that have a question and an answer with tokens, and the reason why there may be none."""
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
    """The example with a share `ratio` of the maskable tokens of its views masked: each by itself, or one span of them."""
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
    if not one_span:
        return rng.random(count) < ratio
    length = min(count, max(1, round(ratio * count)))
    first = int(rng.integers(count - length, endpoint=True))
    hidden = np.zeros(count, bool)
    hidden[first : first + length] = True
    return hidden
