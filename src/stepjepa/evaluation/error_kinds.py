"""What kind of error a wrong answer is."""

from __future__ import annotations

import re
from fractions import Fraction

from stepjepa.data.numbers import NUMBER, fold, number_of, plain_text
from stepjepa.evaluation.metrics.base import INVALID, UNDECIDED
from stepjepa.evaluation.predictions import CUT, REFUSED, Prediction

# Kinds of errors; a wrong answer is of the first kind that fits.
KINDS = {
    "refused": "no room for the prompt",
    "empty": "nothing written",
    "repetition": "repeats itself to the end",
    "cut_off": "cut off at max_new_tokens",
    "no_answer": "no answer found",
    "same_number": "the right number, written otherwise",
    "sign": "right number, wrong sign",
    "factor_10": "off by a power of ten",
    "rounding": "right number, rounded otherwise",
    "elsewhere": "the right answer elsewhere in the text",
    "undecided": "the metric could not decide",
    "invalid": "no valid expression or query",
    "more_around": "the reference with more around it",
    "wrong_number": "another number",
    "wrong_text": "another text",
}
_MANY = 10**6  # decimals of a fraction
_TAIL = 4000  # characters at the end in which repetitions are looked for
_LOOP, _TURNS = 60, 4  # characters and turns from which on a repetition counts


def error_kind(one: Prediction) -> str:
    """The kind of a wrong prediction, a key of `KINDS`."""
    text = one.generated_response.strip()
    if one.stop_reason == REFUSED:
        return "refused"
    if not text:
        return "empty"
    if repeats(text):
        return "repetition"
    if one.stop_reason == CUT:
        return "cut_off"
    if one.gen_answer is None:
        return "no_answer"
    if (one.note or "").startswith(UNDECIDED):
        return "undecided"
    if (one.note or "").startswith(INVALID):
        return "invalid"
    gold, whole = one.gt_answer or one.ground_truth, one.gen_answer.strip() == text
    numbers = number_of(gold), number_of(one.gen_answer)
    if numbers[0] is not None and numbers[1] is not None:
        near = _near(numbers[0], numbers[1])
        if near is not None:
            return near
    if whole:
        return "more_around" if gold.strip() and gold.strip() in text and gold.strip() != text else _wrong(numbers)
    return "elsewhere" if stands_in(gold, text) else _wrong(numbers)


def _wrong(numbers: tuple[str | None, str | None]) -> str:
    return "wrong_text" if None in numbers else "wrong_number"


def repeats(text: str) -> bool:
    """Whether a text ends in a part of it that is repeated again and again.

    The last `_LOOP` characters or more must be `_TURNS` turns or more of one part. Found by the borders of the reversed
    text (Knuth, Morris and Pratt), in time linear in its length.
    """
    tail = text[-_TAIL:][::-1]
    border = [0] * (len(tail) + 1)
    length = 0
    for position in range(1, len(tail)):
        while length and tail[position] != tail[length]:
            length = border[length]
        length += tail[position] == tail[length]
        border[position + 1] = length
        size, period = position + 1, position + 1 - length
        if size >= _LOOP and size >= _TURNS * period:
            return True
    return False


def _near(gold: str, answer: str) -> str | None:
    """How two different numbers are close to each other, if they are."""
    try:
        a, b = Fraction(gold), Fraction(answer)
    except (ValueError, ZeroDivisionError):
        return None
    if a == b:
        return "same_number"
    if a == -b:
        return "sign"
    if a and b and (a > 0) == (b > 0):
        ratio = max(a / b, b / a)
        if ratio.denominator == 1 and re.fullmatch("10+", str(ratio.numerator)):
            return "factor_10"
    return _rounded(gold, answer, a, b)


def _rounded(gold: str, answer: str, a: Fraction, b: Fraction) -> str | None:
    """Whether one number is the other with fewer decimals."""
    decimals = [_MANY if "/" in text else len(text.partition(".")[2]) for text in (gold, answer)]
    if decimals[0] == decimals[1] or min(decimals) == _MANY:
        return None
    return "rounding" if abs(a - b) <= Fraction(1, 2 * 10 ** min(decimals)) else None


def stands_in(answer: str, text: str) -> bool:
    """Whether a text holds an answer: as a number that it writes, or else in its words."""
    number = number_of(answer)
    if number is not None:
        return any(number_of(found[0]) == number for line in fold(text).splitlines() for found in NUMBER.finditer(line))
    words = " ".join(plain_text(answer).casefold().split())
    return len(words) > 1 and words in " ".join(plain_text(text).casefold().split())
