"""Final answers: where they are found and when two of them are the same."""

from pathlib import Path

import pytest

from stepjepa.data.answers import answers_match, final_answer, last_boxed, normalise_number
from support.rows import lines

# Pairs of a known answer and a response, each marked by hand: is the response's final answer the known one?
VERDICTS = lines(Path(__file__).parent / "verdicts.jsonl")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"so \boxed{17}.", "17"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{a} and then \boxed{\frac{1}{2", "a"),
        (r"\boxed{}", None),
        (r"\boxed{1 \boxed{2} 3", "2"),
        (r"\\boxed{5}", "5"),
        (r"\boxed 5.", "5"),
    ],
)
def test_last_boxed(text, expected):
    assert last_boxed(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5 + 5 = 10\n#### 10\nbut \\boxed{11} 12", "11"),
        ("one of 10,20 and 305,1000", "1000"),
        (r"It is \(\frac{1}{2}\).", r"\frac{1}{2}"),
        (r"It is 1.5 \times 10^6.", r"1.5 \times 10^6"),
        ("They meet at 5:30 pm.", "5:30 pm"),
        ("\uff11\uff18 in all", "\uff11\uff18"),
        ("The answer is 9 * 2 = 18.", "18"),
        ("Answer:\n1. She has 16 eggs\nShe makes 18", "18"),
        ("#### Step 2\nShe makes 18", "18"),
        ("none at all", None),
        # The first hashes count.
        ("#### 72\n\nQuestion: and then?\n#### 9\n", "72"),
        ("#### 5 #### 6", "5"),
        ("####\n#### 7", "7"),
        # A difference in words is no negative number.
        ("It is 8 minus 3.", "3"),
        ("(x) minus 3", "3"),
    ],
)
def test_final_answer(text, expected):
    assert final_answer(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\u20ac3.10", "3.1"),
        ("-0.0", "0"),
        (r"-\dfrac{2}{6}", "-1/3"),
        ("1/0", "1/0"),
        (r"2.5 \times 10^{-4}", "0.00025"),
        ("1e999", "1e999"),
        ("\uff11\uff0c\uff12\uff13\uff14\uff0e\uff15", "1234.5"),
        ("9 * 2 = 18", "18"),
        ("2x = 18", "2x = 18"),
        ("- 7 per day", "-7"),
        ("x - 7", "x - 7"),
        ("Rs.7.5", "7.5"),
        ("3:30", "3:30"),
    ],
)
def test_normalise_number(text, expected):
    assert normalise_number(text) == expected
    assert normalise_number(normalise_number(text)) == expected


def test_answers_match():
    for a, b in (("1/3", "0.33"), ("3 5", "35"), (None, "1"), (None, None)):
        assert not answers_match(a, b) and not answers_match(b, a)
    assert answers_match("Monday", r"\text{monday}.")


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
    "piece",
    [
        "\\boxed{", "\\boxed", "{", "}", "\\", "#### ", "#", "11,", "1 ", "1 1/", "1.", "1:", "\\frac{1}{", "\\text{", "a_",
        "answer is ", "answer: 1 * ", "<answer>", "</answer>", " ", "\n", "#### Step 1\n", "\u00e9", "\u00bd", "x=", "(",
    ],
)  # fmt: skip
def test_long_texts_take_no_longer_than_reading_them(piece):
    # With steps quadratic in the length, each of these would take minutes.
    text = piece * (30_000 // len(piece))
    for one in (text, f"\\boxed{{{text}}}", text + "+"):
        answers_match(final_answer(one), one)


def test_digits_without_end():
    long = "1234567890" * 10_000
    assert normalise_number(f"000{long}.50") == f"{long}.5"
    assert answers_match(f"{long}.0", long)
    assert not answers_match(long[:-1] + "1", long)
    assert normalise_number(f"{long}/2") == f"{long}/2"


# As docs/evaluate.md lists them, and as they stand in sentences.
WRITTEN = [
    "18", "$18.00", r"\$18", "50%", "1234.5", "1,234.50", "1{,}234.5", r"1\,234.5", r"1,\!234.5", "1 234,5", "1.234,50",
    "1'234.5", "1_234", "12,34,567", "0.5", ".5", "1/2", "2/4", r"\frac{1}{2}", r"\dfrac12", "\u00bd", "\u2154", "1.5",
    "1 1/2", r"1\frac{1}{2}", "1\u00bd", "12\u00bd", "1 \u00bd", "1500000", r"1.5 \times 10^6", "1.5e6", "1.5 million",
    "-3", "\u22123", "minus 3", "Minus 3", "negative 3", "minus 12\u00bd", "minus 1,234", "-\u00bd", "\uff11\uff18",
]  # fmt: skip
SENTENCES = [
    "It is {}.", "So {} apples are left", "The answer is {}.", "Answer: {}", "He has {}, then", "#### {}", "**{}**", "${}$",
    "We get x = {}.", "{}",
]  # fmt: skip


@pytest.mark.parametrize("sentence", SENTENCES)
def test_numbers_are_read_in_sentences_as_in_boxes(sentence):
    for written in WRITTEN:
        boxed = final_answer(f"\\boxed{{{written}}}")
        found = final_answer(sentence.format(written))
        assert normalise_number(found) == normalise_number(boxed), (written, found)
