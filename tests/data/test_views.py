"""Pairs from turns, with token indices typed by hand."""

import pytest

from stepjepa.data.views import Pair, Turn, question_answer_pairs, step_pairs

#            0     1 2 3  4      5     6 7 8 9 10   11     12
# tokens  [head][user 1-3][end][head][answer 6-10][end]  [line]
TURN = Turn(user=(1, 4), user_close=5, answer=(6, 11), label_stop=12, steps=((6, 8), (8, 9), (9, 11)))


def test_question_and_answer_by_name():
    assert question_answer_pairs([TURN], None) == ([Pair(3, 3, 6, 11, 10)], None)


@pytest.mark.parametrize(("last_token", "source", "target"), [(-1, 4, 11), (-2, 3, 10), (-3, 2, 9), (-4, 1, 8)])
def test_question_and_answer_by_offset_from_the_end_of_the_turn(last_token, source, target):
    # The branch stays behind the user's content; the target view holds its end of turn.
    assert question_answer_pairs([TURN], last_token) == ([Pair(3, source, 6, 12, target)], None)


def test_questions_and_answers_that_make_no_pair():
    assert question_answer_pairs([TURN], -5) == ([], "view_shorter_than_last_token")
    assert question_answer_pairs([Turn(None, 0, (6, 11), 12)], None) == ([], "no_user_message")
    assert question_answer_pairs([Turn((1, 1), 2, (6, 11), 12)], None) == ([], "empty_view")
    assert question_answer_pairs([Turn((1, 4), 5, (6, 6), 7)], None) == ([], "empty_view")
    assert question_answer_pairs([], None) == ([], "no_user_message")
    pairs, reason = question_answer_pairs([Turn((1, 4), 5, (6, 6), 7), Turn((8, 9), 9, (9, 12), 12)], None)
    assert (pairs, reason) == ([Pair(8, 8, 9, 12, 11)], None)


def test_steps():
    assert step_pairs([TURN], "first", None) == ([Pair(7, 7, 8, 9, 8)], None)
    assert step_pairs([TURN], "all", None) == ([Pair(7, 7, 8, 9, 8), Pair(8, 8, 9, 11, 10)], None)
    later = Turn((13, 14), 15, (16, 20), 21, ((16, 18), (18, 20)))
    assert step_pairs([TURN, later], "first", None)[0] == [Pair(7, 7, 8, 9, 8), Pair(17, 17, 18, 20, 19)]
    # No pair leads from one answer into the next.
    assert step_pairs([TURN, later], "all", None)[0][1:] == [Pair(8, 8, 9, 11, 10), Pair(17, 17, 18, 20, 19)]


def test_steps_by_offset():
    assert step_pairs([TURN], "first", -1) == step_pairs([TURN], "first", None)
    assert step_pairs([TURN], "first", -2) == ([], "view_shorter_than_last_token")
    long = Turn(None, 0, (0, 6), 7, ((0, 3), (3, 6)))
    assert step_pairs([long], "first", -2) == ([Pair(2, 1, 3, 6, 4)], None)
    assert step_pairs([long], "first", -3) == ([Pair(2, 0, 3, 6, 3)], None)


def test_steps_that_make_no_pair():
    assert step_pairs([], "all", None) == ([], "fewer_than_two_steps")
    assert step_pairs([Turn(None, 0, (0, 6), 7, ((0, 6),))], "all", None) == ([], "fewer_than_two_steps")
    # A step without a token of its own is skipped over by nobody: its neighbours do not become a pair.
    merged = Turn(None, 0, (0, 6), 7, ((0, 0), (0, 3), (3, 6)))
    assert step_pairs([merged], "first", None) == ([], "empty_view")
    assert step_pairs([merged], "all", None) == ([Pair(2, 2, 3, 6, 5)], None)
    middle = Turn(None, 0, (0, 6), 7, ((0, 3), (3, 3), (3, 6)))
    assert step_pairs([middle], "all", None) == ([], "empty_view")
