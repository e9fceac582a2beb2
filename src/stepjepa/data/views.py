"""Pairs: which views an objective lets predict which.

A pair names token spans of one example: the source view ends with token `source_end`, the target view is the tokens
[target_start, target_end). Which state stands for a view is a readout: the last predictor token (or, with K = 0, the token
`source_readout`) for the source, the token `target_readout` for the target.

Token indices below the trunk's length are tokens of the trunk. Those behind it are tokens of `Example.views`: texts that
are encoded apart from the trunk, their predictors already in place (`data.apart`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stepjepa.data.tokens import TokenSpan


class Pair(NamedTuple):
    """One source view and the target view it must predict; all are token indices.

    Attributes:
        source_end: last token of the source view (behind which a branch hangs, where it lies on the trunk).
        source_readout: the token whose state stands for the source, unless a branch is read.
        target_start, target_end: the target view.
        target_readout: the token whose state stands for it.
        source_start: first token of the source view. A source that begins behind the trunk is encoded apart; one on the
            trunk sees everything before its end, wherever it begins.
    """

    source_end: int
    source_readout: int
    target_start: int
    target_end: int
    target_readout: int
    source_start: int = 0


@dataclass(frozen=True)
class Turn:
    """One assistant turn in tokens.

    Attributes:
        user: content of the user message before it, None if there is none.
        user_close: tokens [.., stop) up to the user's end-of-turn token, so that ``last_token`` can count from there.
        answer: content of the answer.
        label_stop: end of the labelled tokens: behind the end-of-turn token.
        steps: spans of the answer's steps, none unless the objective needs them. A step whose last character was merged
            into the next one's first token may be left without a token (first == stop).
    """

    user: TokenSpan | None
    user_close: int
    answer: TokenSpan
    label_stop: int
    steps: tuple[TokenSpan, ...] = ()


def question_answer_pairs(turns: Sequence[Turn], last_token: int | None) -> tuple[list[Pair], str | None]:
    """User message -> assistant message, for every turn (``llm_jepa`` with in-context views).

    `last_token` counts from the end of the turn, its end-of-turn token included, as the published code does: -1 is the
    end of turn, -2 the last token of the content. None reads the last token of the content whatever the template is.

    Returns:
        The pairs, and where there are none, the reason.
    """
    pairs, reason = [], "no_user_message"
    for turn in turns:
        if turn.user is None:
            continue
        if turn.user[0] == turn.user[1] or turn.answer[0] == turn.answer[1]:
            reason = "empty_view"
            continue
        target_stop, source_readout, target_readout = turn.answer[1], turn.user[1] - 1, turn.answer[1] - 1
        if last_token is not None:
            target_stop = turn.label_stop
            source_readout = turn.user_close + last_token
            target_readout = turn.label_stop + last_token
            if source_readout < turn.user[0] or target_readout < turn.answer[0]:
                reason = "view_shorter_than_last_token"
                continue
        pairs.append(Pair(turn.user[1] - 1, source_readout, turn.answer[0], target_stop, target_readout))
    return pairs, None if pairs else reason


def step_pairs(
    turns: Sequence[Turn], which: str, last_token: int | None, horizons: Sequence[int] = (1,)
) -> tuple[list[Pair], str | None]:
    """Step i -> step i + h inside every assistant turn (``step_jepa``).

    Args:
        turns: the assistant turns with their steps.
        which: ``first`` (i = 1 only); otherwise every i, of which ``random`` draws one an epoch later.
        last_token: None, or a negative offset from the end of a step: -1 is its last token (the one that holds the end
            of its separator).
        horizons: values of h.

    Returns:
        The pairs, by source and then by horizon, and where there are none, the reason.
    """
    pairs, reason = [], "fewer_than_two_steps"
    back = -1 if last_token is None else last_token
    for turn in turns:
        steps = turn.steps
        if len(steps) >= 2 and len(steps) <= min(horizons):
            reason = "horizon_beyond_answer"
        for number, (first, stop) in enumerate(steps[:1] if which == "first" else steps):
            for horizon in horizons:
                if number + horizon >= len(steps):
                    continue
                next_first, next_stop = steps[number + horizon]
                if first == stop or next_first == next_stop:
                    reason = "empty_view"
                elif stop + back < first or next_stop + back < next_first:
                    reason = "view_shorter_than_last_token"
                else:
                    pairs.append(Pair(stop - 1, stop + back, next_first, next_stop, next_stop + back))
    return pairs, None if pairs else reason


def content_pairs(turns: Sequence[Turn]) -> tuple[list[Pair], str | None]:
    """User content and answer content of every turn, where they stand on the trunk (``semantic_tube``).

    Nothing is encoded apart: the objective combines the trunk's own states between these bounds (`forest.tube`).

    Returns:
        The pairs, and where there are none, the reason.
    """
    pairs, reason = question_answer_pairs(turns, None)
    starts = {turn.user[1] - 1: turn.user[0] for turn in turns if turn.user is not None}
    return [pair._replace(source_start=starts[pair.source_end]) for pair in pairs], reason
