"""Which option a text chooses."""

import pytest

from stepjepa.errors import DataError
from stepjepa.evaluation.metrics import make_metric

ROW = {"answerKey": "B", "choices": {"text": ["red", "blue", "green", "dark blue"], "label": ["A", "B", "C", "D"]}}


@pytest.mark.parametrize(
    "text",
    [
        "B",
        "(B)",
        "b",
        "B.",
        "B) blue",
        "B: blue",
        "**B. blue**",
        "blue",
        "Blue.",
        "The answer is B.",
        "The answer is (B) blue.",
        "The answer is blue.",
        "Answer: B",
        "Final Answer: **B**",
        r"\boxed{B}",
        r"\boxed{\text{(B)}}",
        r"\boxed{blue}",
        r"A? No. \boxed{B. blue}",
        "I think the best choice is **(B)**.",
        "A is wrong, C is wrong, so it must be B",
        "(A) is red, but the answer is (B).",
        "B\n\nBecause the sky is blue.",
        "the answer is a colour: B",
    ],
)
def test_chosen(text):
    assert make_metric("multiple_choice").score(text, ROW) == (1.0, "B", "B", "")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("", None),
        ("I do not know", None),
        ("A good question.", None),
        ("A", "A"),
        ("The answer is E", "E"),
        ("dark blue", "D"),
        ("D) dark blue", "D"),
        (r"\boxed{A} B", "A"),
        ("C. green\nNot B", "C"),
    ],
)
def test_another_or_none(text, answer):
    note = "no option named" if answer is None else "another option"
    assert make_metric("multiple_choice").score(text, ROW) == (0.0, "B", answer, note)


@pytest.mark.parametrize(
    ("row", "gold"),
    [
        ({"choices": ["x", "y"], "answer": 1}, "B"),
        ({"endings": ["x", "y"], "label": "0"}, "A"),
        ({"options": {"a": "x", "b": "y"}, "answer": "b"}, "B"),
        ({"choices": {"text": ["x", "y"], "label": ["1", "2"]}, "answerKey": "2"}, "2"),
        ({"choices": ["x", "y"], "answer": "y"}, "B"),
        ({"answer": "So the answer is C."}, "C"),
        ({"messages": [{"role": "assistant", "content": "(C)"}]}, "C"),
        ({"choices": ["x", "y"], "answer": 7}, None),
    ],
)
def test_references(row, gold):
    verdict = make_metric("multiple_choice").score(gold or "A", row)
    assert (verdict.gold, verdict.score) == (gold, float(gold is not None))


def test_options_that_make_no_sense():
    with pytest.raises(DataError, match="must be a list of texts"):
        make_metric("multiple_choice").score("A", {"answer": "A", "choices": {"text": ["x"], "label": ["A", "B"]}})
