"""Pairs from turns, with token indices typed by hand."""

import pytest

from stepjepa.data.types import Span, Turn
from support.encoding import View, pairs_found

#            0     1 2 3  4      5     6 7 8 9 10   11     12
# tokens  [head][user 1-3][end][head][answer 6-10][end]  [line]
TURN = Turn(
    user=Span(1, 4), user_close=5, answer=Span(6, 11), label_stop=12, steps=(Span(6, 8), Span(8, 9), Span(9, 11))
)


def test_question_and_answer_by_name():
    assert pairs_found("llm_jepa", [TURN]) == ([View(3, 3, 6, 11, 10)], None)


@pytest.mark.parametrize(("last_token", "source", "target"), [(-1, 4, 11), (-2, 3, 10), (-3, 2, 9), (-4, 1, 8)])
def test_question_and_answer_by_offset_from_the_end_of_the_turn(last_token, source, target):
    # The branch stays behind the user's content; the target view holds its end of turn.
    branch = View(3, None, 6, 12, target)
    assert pairs_found("llm_jepa", [TURN], last_token=last_token, predictors=2) == ([branch], None)
    assert pairs_found("llm_jepa", [TURN], last_token=last_token) == ([View(source, source, 6, 12, target)], None)


def test_questions_and_answers_that_make_no_pair():
    assert pairs_found("llm_jepa", [TURN], last_token=-5) == ([], "view_shorter_than_last_token")
    assert pairs_found("llm_jepa", [Turn(None, 0, Span(6, 11), 12)]) == ([], "no_user_message")
    assert pairs_found("llm_jepa", [Turn(Span(1, 1), 2, Span(6, 11), 12)]) == ([], "empty_view")
    assert pairs_found("llm_jepa", [Turn(Span(1, 4), 5, Span(6, 6), 7)]) == ([], "empty_view")
    assert pairs_found("llm_jepa", []) == ([], "no_user_message")
    pairs, reason = pairs_found("llm_jepa", [Turn(Span(1, 4), 5, Span(6, 6), 7), Turn(Span(8, 9), 9, Span(9, 12), 12)])
    assert (pairs, reason) == ([View(8, 8, 9, 12, 11)], None)


def test_steps():
    assert pairs_found("step_jepa", [TURN], step_pairs="first") == ([View(7, 7, 8, 9, 8)], None)
    assert pairs_found("step_jepa", [TURN], step_pairs="all") == ([View(7, 7, 8, 9, 8), View(8, 8, 9, 11, 10)], None)
    later = Turn(Span(13, 14), 15, Span(16, 20), 21, (Span(16, 18), Span(18, 20)))
    assert pairs_found("step_jepa", [TURN, later], step_pairs="first")[0] == [
        View(7, 7, 8, 9, 8),
        View(17, 17, 18, 20, 19),
    ]
    # No pair leads from one answer into the next.
    assert pairs_found("step_jepa", [TURN, later], step_pairs="all")[0][1:] == [
        View(8, 8, 9, 11, 10),
        View(17, 17, 18, 20, 19),
    ]


def test_steps_by_offset():
    assert pairs_found("step_jepa", [TURN], step_pairs="first", last_token=-1) == pairs_found(
        "step_jepa", [TURN], step_pairs="first"
    )
    assert pairs_found("step_jepa", [TURN], step_pairs="first", last_token=-2) == ([], "view_shorter_than_last_token")
    long = Turn(None, 0, Span(0, 6), 7, (Span(0, 3), Span(3, 6)))
    assert pairs_found("step_jepa", [long], step_pairs="first", last_token=-2) == ([View(1, 1, 3, 6, 4)], None)
    assert pairs_found("step_jepa", [long], step_pairs="first", last_token=-3) == ([View(0, 0, 3, 6, 3)], None)


def test_steps_that_make_no_pair():
    assert pairs_found("step_jepa", [], step_pairs="all") == ([], "fewer_than_two_steps")
    assert pairs_found("step_jepa", [Turn(None, 0, Span(0, 6), 7, (Span(0, 6),))], step_pairs="all") == (
        [],
        "fewer_than_two_steps",
    )
    # A step without a token of its own is skipped over by nobody: its neighbours do not become a pair.
    merged = Turn(None, 0, Span(0, 6), 7, (Span(0, 0), Span(0, 3), Span(3, 6)))
    assert pairs_found("step_jepa", [merged], step_pairs="first") == ([], "empty_view")
    assert pairs_found("step_jepa", [merged], step_pairs="all") == ([View(2, 2, 3, 6, 5)], None)
    middle = Turn(None, 0, Span(0, 6), 7, (Span(0, 3), Span(3, 3), Span(3, 6)))
    assert pairs_found("step_jepa", [middle], step_pairs="all") == ([], "empty_view")
