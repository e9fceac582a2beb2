r"""Finding the final answer in a text and comparing two of them.

What `\boxed{}` problems and GSM8K need: rules on strings, in time linear in the text. Nothing is evaluated: `1/2` and
`0.5` are the same number (see `stepjepa.data.numbers`), `\sqrt{4}` and `2` are not. Symbolic equality is what the
metric `math` is for.
"""

from __future__ import annotations

import re

from stepjepa.data.blocks import answer_of
from stepjepa.data.numbers import NUMBER, fold, normalise_number, number_of

__all__ = ["answers_match", "final_answer", "last_boxed", "normalise_number"]

# An opened box, an escaped sign (an escaped brace is no brace; "\\boxed", as doubly escaped JSON has it, is a box), a brace.
_BRACES = re.compile(r"\\f?boxed\s*\{|\\(?!\\?f?boxed).|[{}]", re.DOTALL)
_BARE_BOX = re.compile(r"\\boxed\s*(-?\d[\d.,/]*)")
_SHORT = 80  # characters of an answer between <answer> marks

# "The answer is", "Final answer:", with what may stand before the number itself.
_SAYS = re.compile(
    r"\banswer\b[^.\n\d]{0,40}?(\b(?:is|are|equals)\b|:|=)"
    r"(?:[\s*_$\\(\[{:=\u2248]|\\text|\b(?:therefore|thus|hence|then|so|simply|exactly|approximately|about|equal|to|a|total|of|the)\b){0,12}",
    re.IGNORECASE,
)
_CALCULATION = re.compile(r"[ *$]{0,3}(?:[+/^=\u00d7\u00f7<>]|\*[ ]?\d|-[ ]?[\d(]|\\times|\\cdot|\\div|x[ ]?\d)")
_LIST_ITEM = re.compile(r"[.)][ \t]+\S")
_HASHES = re.compile(r"####((?:(?!####)[^\n])*)")
_HEADED = re.compile(r"\W{0,4}(?:(?:the |my )?(?:final |correct )?(?:answer|result)(?: is)?\W{0,6})?\d", re.IGNORECASE)

_SPACES = re.compile(r"(?<!\d)\s+|\s+(?!\d)")  # not the one between two numbers


def last_boxed(text: str) -> str | None:
    r"""The content of the last complete `\boxed{...}` that holds something, stripped; None without one.

    Braces may nest and escaped braces do not count. A box that never closes, as a truncated answer leaves it, and an empty
    one are passed over. Of a box in a box the inner one is taken. `\boxed 18` counts where no braces do.
    """
    first = text.find("boxed")
    if first < 0:
        return None
    opened: list[tuple[bool, int]] = []  # is it a box, where does its content begin
    begin = end = -1
    for mark in _BRACES.finditer(text, max(first - 3, 0)):
        sign = mark[0]
        if sign == "}":
            box, start = opened.pop() if opened else (False, 0)
            if box and start > begin and text[start : mark.start()].strip():
                begin, end = start, mark.start()
        elif sign[-1] == "{" and (len(sign) == 1 or len(sign) > 2):
            opened.append((len(sign) > 1, mark.end()))
    if begin >= 0:
        return text[begin:end].strip()
    bare = _BARE_BOX.findall(text)
    return bare[-1].rstrip(".,/") if bare else None


def final_answer(text: str) -> str | None:
    r"""The answer of a text, as written (see `normalise_number`).

    The first of these that the text has: the last `\boxed{}` that holds something; what follows the first `####`, where it
    is the text's end or a number, not another heading; what stands between the last `<answer>` marks; the number after the
    last "answer is" or "answer:"; the last number. None without any. Thinking is passed over, see `answer_of`.
    """
    text = answer_of(text)
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed
    found = after_hashes(text) if "####" in text else None
    if found is None and "</answer>" in text:
        end = text.rfind("</answer>")
        inner = text[text.rfind("<answer>", 0, end) + 8 : end].strip() if "<answer>" in text[:end] else ""
        found = inner if 0 < len(inner) <= _SHORT and "\n" not in inner else None
    return found or _said(text) or _last_number(text)


def answers_match(a: str | None, b: str | None) -> bool:
    """Whether two answers are the same.

    Numbers are compared by `normalise_number`, which reads no units (`18 dollars` is `18 cents`), other texts without
    regard to letter case, spaces, and LaTeX or Markdown around them. A missing or empty answer matches nothing.
    """
    if a is None or b is None:
        return False
    if a == b:
        return bool(a.strip())
    one, other = normalise_number(a), normalise_number(b)
    if one == other:
        return bool(one)
    words, others = (_SPACES.sub("", text).casefold().strip(".") for text in (one, other))
    return words == others != ""


def after_hashes(text: str) -> str | None:
    """What follows the first `####` on its line, as GSM8K's own extractor reads it; None without an answer there.

    Where more text follows, such a line may be a heading: then it must begin with a number, or with "answer" and a number.
    """
    end = len(text.rstrip())
    for hashes in _HASHES.finditer(text):
        line = hashes[1].strip()
        if line and hashes.end() >= end:
            return line
        numbered = _HEADED.match(fold(line)) and not _LIST_ITEM.search(line[:6])
        if numbered and number_of(line) is not None:
            return line
    return None


def _said(text: str) -> str | None:
    """The number after the last "answer is", "answer:" that is followed by one."""
    if "answer" not in text.lower():
        return None
    for says in reversed(list(_SAYS.finditer(text))):
        end = text.find("\n", says.end())
        line = text[says.end() : len(text) if end < 0 else end]
        folded = fold(line)
        number = NUMBER.match(folded)
        if number is None:
            continue
        rest = folded[number.end() :]
        if _CALCULATION.match(rest):
            return _last_number(line)
        # "Answer:" may also head a solution; a number after which the sentence goes on is no answer then.
        headed = says[1] in ":=" and (any(map(str.isdecimal, rest)) or ("\n" in says[0] and _LIST_ITEM.match(rest)))
        if not headed:
            return line[: number.end()].strip()
    return None


def _last_number(text: str) -> str | None:
    end = len(text)
    while end >= 0:
        begin = text.rfind("\n", 0, end) + 1
        line = text[begin:end]
        numbers = list(NUMBER.finditer(fold(line)))
        if numbers:
            return line[numbers[-1].start() : numbers[-1].end()].strip()
        end = begin - 1
    return None
