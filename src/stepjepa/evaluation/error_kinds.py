"""What kind of error a wrong answer is."""

from __future__ import annotations

import re
from fractions import Fraction

from stepjepa.data.numbers import NUMBER, fold, number_of, plain_text
from stepjepa.evaluation.metrics.registry import INVALID, UNDECIDED
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
    text, note = one.generated_response.strip(), one.note or ""
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
    if note.startswith(UNDECIDED):
        return "undecided"
    if note.startswith(INVALID):
        return "invalid"
    gold, answer = (one.gt_answer or one.ground_truth).strip(), one.gen_answer.strip()
    expected, found = number_of(gold), number_of(answer)
    numbers = expected is not None and found is not None
    near = _near(str(expected), str(found)) if numbers else None
    if near is not None:
        return near
    if answer == text and gold and gold in text and gold != text:
        return "more_around"
    if answer != text and _holds(text, gold):
        return "elsewhere"
    return "wrong_number" if numbers else "wrong_text"


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
    # One number with fewer decimals than the other.
    decimals = [_MANY if "/" in text else len(text.partition(".")[2]) for text in (gold, answer)]
    if decimals[0] == decimals[1] or min(decimals) == _MANY:
        return None
    return "rounding" if abs(a - b) <= Fraction(1, 2 * 10 ** min(decimals)) else None


def _holds(text: str, answer: str) -> bool:
    """Whether a text holds an answer: as a number that it writes, or else in its words."""
    number = number_of(answer)
    if number is not None:
        return any(number_of(found[0]) == number for line in fold(text).splitlines() for found in NUMBER.finditer(line))
    words = " ".join(plain_text(answer).casefold().split())
    return len(words) > 1 and words in " ".join(plain_text(text).casefold().split())
