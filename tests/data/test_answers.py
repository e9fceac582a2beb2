"""Final answers: where they are found and when two of them are the same."""

from pathlib import Path

import pytest

from stepjepa.data.answers import answers_match, final_answer, last_boxed
from support.rows import lines

# Pairs of a known answer and a response, each marked by hand: is the response's final answer the known one?
VERDICTS = lines(Path(__file__).parent / "verdicts.jsonl")


def test_hand_marked_verdicts():
    assert len(VERDICTS) > 500
    assert {one["verdict"] for one in VERDICTS} == {True, False}
    wrong = []
    for one in VERDICTS:
        gold = last_boxed(one["gold"]) or one["gold"]
        found = final_answer(one["response"])
        if answers_match(found, gold) is not one["verdict"] or answers_match(gold, found) is not one["verdict"]:
            wrong.append((one, found))
    assert wrong == []


@pytest.mark.parametrize(
    ("end", "answer"),
    [
        # As the solutions of MetaMath's MATH rows and MathInstruct's AQuA rows end.
        (r"The answer is: 2\sqrt{5}", r"2\sqrt{5}"),
        (r"The answer is: $\sqrt{3}$.", r"$\sqrt{3}$"),
        (r"The answer is: \dfrac{\sqrt{2}}{2}", r"\dfrac{\sqrt{2}}{2}"),
        ("The answer is: y-1", "y-1"),
        ("The answer is: -4x", "-4x"),
        ("The answer is: (3,4)", "(3,4)"),
        ("The answer is D", "D"),
        ("The answer is (B).", "(B)"),
        # A single number is the answer, whatever words and signs stand around it.
        ("The answer is 72!", "72"),
        ("The answer is $5, since it is half of 10.", "5"),
        ("The answer is that she has 8 apples.", "8"),
    ],
)
def test_an_announced_formula_or_choice_is_never_read_as_an_earlier_number(end, answer):
    assert final_answer(f"There are 2 apples and 7 pears.\n{end}") == answer


@pytest.mark.parametrize(
    "piece",
    [
        "\\boxed{", "\\boxed", "{", "}", "\\", "#### ", "1", "11,", "1 ", "1 1/", "1.", "1:", "\\frac{1}{", "\\text{", "a_",
        "answer is ", "answer: 1 * ", "<answer>", "</answer>", " ", "\n", "#### Step 1\n", "\u00e9", "\u00bd", "x=", "(",
    ],
)  # fmt: skip
def test_long_texts_take_no_longer_than_reading_them(piece):
    # With steps quadratic in the length, each of these would take minutes.
    text = piece * (30_000 // len(piece))
    for one in (text, f"\\boxed{{{text}}}", text + "+"):
        answers_match(final_answer(one), one)
