"""Final answers: where they are found and when two of them are the same."""

import pytest

from stepjepa.evaluation.answers import answers_match, final_answer, last_boxed, normalise_number


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"so \boxed{17}.", "17"),
        (r"first \boxed{1}, then \boxed{ 2 }", "2"),
        (r"\boxed{\frac{1}{2}} is the answer", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{a} and then \boxed{\frac{1}{2", "a"),
        (r"\boxed {5}", "5"),
        (r"\boxed{}", ""),
        (r"\boxed{12", None),
        ("no box here: 12", None),
        ("", None),
    ],
)
def test_last_boxed(text, expected):
    assert last_boxed(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5 + 5 = 10\n#### 10\nbut \\boxed{11} 12", "11"),
        ("48 + 24 = 72\n#### 72", "72"),
        ("#### 1\nno:\n#### 1,234 apples\n", "1,234 apples"),
        ("She has 3 and then 1,234.50 dollars.", "1,234.50"),
        ("It costs $5.", "$5"),
        ("It fell to -7 degrees", "-7"),
        ("What is 9-4", "4"),
        ("a share of 3/4", "3/4"),
        ("one of 10,20 and 305,1000", "1000"),
        ("none at all", None),
    ],
)
def test_final_answer(text, expected):
    assert final_answer(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("17", "17"),
        (" 17. ", "17"),
        ("1,234,567", "1234567"),
        ("$1,234.50", "1234.5"),
        (r"\$12", "12"),
        ("$12$", "12"),
        ("\u20ac3.10", "3.1"),
        ("50%", "50"),
        (r"1{,}000", "1000"),
        (r"10\,000", "10000"),
        ("5.00", "5"),
        (".5", "0.5"),
        ("007", "7"),
        ("+3", "3"),
        ("- 3", "-3"),
        ("\u22123", "-3"),
        ("-0.0", "0"),
        ("100", "100"),
        ("1/2", "1/2"),
        (r"\frac{1}{2}", r"\frac{1}{2}"),
        ("3,5", "3,5"),
        ("x + 1", "x + 1"),
        ("", ""),
        (".", ""),
    ],
)
def test_normalise_number(text, expected):
    assert normalise_number(text) == expected
    assert normalise_number(normalise_number(text)) == expected


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("1,000", "1000.0", True),
        ("$5.", "5", True),
        ("5", "-5", False),
        ("1/2", "0.5", False),
        ("10", "100", False),
        (None, "1", False),
        (None, None, False),
    ],
)
def test_answers_match(a, b, expected):
    assert answers_match(a, b) is expected
    assert answers_match(b, a) is expected
