"""Pairs from turns, with token indices typed by hand."""

import pytest

from stepjepa.data.types import Span, Turn
from support.encoding import View, pairs_found

#            0     1 2 3  4      5     6 7 8 9 10   11     12
# tokens  [head][user 1-3][end][head][answer 6-10][end]  [line]
TURN = Turn(
    user=Span(1, 4), user_close=5, answer=Span(6, 11), label_stop=12, steps=(Span(6, 8), Span(8, 9), Span(9, 11))
)
LATER = Turn(Span(13, 14), 15, Span(16, 20), 21, (Span(16, 18), Span(18, 20)))
LONG = Turn(None, 0, Span(0, 6), 7, (Span(0, 3), Span(3, 6)))
NO_ANSWER = Turn(Span(1, 4), 5, Span(6, 6), 7)


def steps(*spans: tuple[int, int]) -> Turn:
    return Turn(None, 0, Span(0, 6), 7, tuple(Span(*span) for span in spans))


QUESTIONS = [
    ([TURN], {}, [View(3, 3, 6, 11, 10)]),
    # By offset from the end of the turn; the target holds its end of turn, and a branch stays after the user's content.
    ([TURN], {"last_token": -1}, [View(4, 4, 6, 12, 11)]),
    ([TURN], {"last_token": -4}, [View(1, 1, 6, 12, 8)]),
    ([TURN], {"last_token": -1, "predictors": 2}, [View(3, None, 6, 12, 11)]),
    ([TURN], {"last_token": -5}, "view_shorter_than_last_token"),
    # With predictors the source is read at one of them, so it may be short.
    ([TURN], {"last_token": -5, "predictors": 1}, [View(3, None, 6, 12, 7)]),
    ([TURN], {"last_token": -7, "predictors": 1}, "view_shorter_than_last_token"),
    ([Turn(None, 0, Span(6, 11), 12)], {}, "no_user_message"),
    ([Turn(Span(1, 1), 2, Span(6, 11), 12)], {}, "empty_view"),
    ([NO_ANSWER], {}, "empty_view"),
    ([], {}, "no_user_message"),
    ([NO_ANSWER, Turn(Span(8, 9), 9, Span(9, 12), 12)], {}, [View(8, 8, 9, 12, 11)]),
]
FIRST, ALL, PLAN = {"step_pairs": "first"}, {"step_pairs": "all"}, {"step_pairs": "plan"}
STEPS = [
    ([TURN], FIRST, [View(7, 7, 8, 9, 8)]),
    ([TURN], ALL, [View(7, 7, 8, 9, 8), View(8, 8, 9, 11, 10)]),
    ([TURN, LATER], FIRST, [View(7, 7, 8, 9, 8), View(17, 17, 18, 20, 19)]),
    # No pair leads from one answer into the next.
    ([TURN, LATER], ALL, [View(7, 7, 8, 9, 8), View(8, 8, 9, 11, 10), View(17, 17, 18, 20, 19)]),
    ([TURN], {**FIRST, "last_token": -1}, [View(7, 7, 8, 9, 8)]),
    ([TURN], {**FIRST, "last_token": -2}, "view_shorter_than_last_token"),
    ([LONG], {**FIRST, "last_token": -2}, [View(1, 1, 3, 6, 4)]),
    ([LONG], {**FIRST, "last_token": -3}, [View(0, 0, 3, 6, 3)]),
    ([steps((0, 1), (1, 4))], {**FIRST, "last_token": -3}, "view_shorter_than_last_token"),
    ([steps((0, 1), (1, 4))], {**FIRST, "last_token": -3, "predictors": 2}, [View(0, None, 1, 4, 1)]),
    ([steps((0, 4), (4, 5))], {**FIRST, "last_token": -2, "predictors": 2}, "view_shorter_than_last_token"),
    ([], ALL, "fewer_than_two_steps"),
    ([steps((0, 6))], ALL, "fewer_than_two_steps"),
    # A step without a token of its own is skipped over by nobody: its neighbours do not become a pair.
    ([steps((0, 0), (0, 3), (3, 6))], FIRST, "empty_view"),
    ([steps((0, 0), (0, 3), (3, 6))], ALL, [View(2, 2, 3, 6, 5)]),
    ([steps((0, 3), (3, 3), (3, 6))], ALL, "empty_view"),
    ([steps((0, 3), (3, 6))], {**ALL, "horizon": 2}, "horizon_beyond_answer"),
    # The question's view ends right in front of the answer.
    ([TURN], {**PLAN, "horizon": 2}, [View(5, 5, 6, 8, 7), View(5, 5, 8, 9, 8)]),
    (
        [TURN],
        {**PLAN, "horizon": 9, "last_token": -1},
        [View(5, 5, 6, 8, 7), View(5, 5, 8, 9, 8), View(5, 5, 9, 11, 10)],
    ),
    ([TURN], {**PLAN, "multi_horizon": [1, 3]}, [View(5, 5, 6, 8, 7), View(5, 5, 9, 11, 10)]),
    ([TURN, LATER], {**PLAN, "predictors": 1}, [View(5, None, 6, 8, 7), View(15, None, 16, 18, 17)]),
    ([LONG, NO_ANSWER._replace(steps=())], PLAN, "empty_view"),
    ([LONG], PLAN, "no_user_message"),
    ([TURN], {**PLAN, "multi_horizon": [4, 5]}, "horizon_beyond_answer"),
]


# A text of so many tokens, cut in two.
HALVES = [
    ([], {"ids": range(4), "split_ratio": 0.3}, [View(1, 1, 2, 4, 3)]),
    ([], {"ids": range(3)}, "too_short_to_split"),
    ([], {"ids": range(5), "last_token": -3}, "view_shorter_than_last_token"),
    ([], {"ids": range(5), "last_token": -3, "predictors": 1}, [View(1, None, 2, 5, 2)]),
    ([], {"ids": range(9), "last_token": -2}, [View(2, 2, 4, 9, 7)]),
]
CASES = {"llm_jepa": QUESTIONS, "step_jepa": STEPS, "split": HALVES}


@pytest.mark.parametrize(
    ("objective", "turns", "options", "expected"),
    [(objective, *case) for objective, cases in CASES.items() for case in cases],
)
def test_pairs_by_hand(objective, turns, options, expected):
    pairs, reason = pairs_found(objective, turns, **options)
    assert (pairs or reason) == expected and bool(pairs) == (reason is None)
