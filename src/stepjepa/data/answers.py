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

# "\\boxed", as doubly escaped JSON has it, is a box, and an escaped brace is no brace.
_BRACES = re.compile(r"(?P<box>\\f?boxed\s*\{)|(?P<escaped>\\(?!\\?f?boxed).)|(?P<open>\{)|(?P<close>\})", re.DOTALL)
_BARE_BOX = re.compile(r"\\boxed\s*(-?\d[\d.,/]*)")
_ANSWER_TAGS = re.compile(r"<answer>\s{0,8}(\S|\S[^\n]{0,80}?\S)\s{0,8}</answer>")

# "The answer is", "Final answer:", with what may stand before the number itself.
_SAYS = re.compile(
    r"\banswer\b[^.\n\d]{0,40}?(\b(?:is|are|equals)\b|:|=)"
    r"(?:[\s*_$\\(\[{:=\u2248]|\\text|\b(?:therefore|thus|hence|then|so|simply|exactly|approximately|about|equal|to|a|total|of|the)\b){0,12}",
    re.IGNORECASE,
)
_CALCULATION = re.compile(r"[ *$]{0,3}(?:[+/^=\u00d7\u00f7<>]|\*[ ]?\d|-[ ]?[\d(]|\\times|\\cdot|\\div|x[ ]?\d)")
_LIST_ITEM = re.compile(r"[.)][ \t]+\S")
_HASHES = re.compile(r"####((?:(?!####)[^\n])*)")
# A number, or "answer" and a number, but no number of a heading: 1. Count
_HEADED = re.compile(
    r"\W{0,4}(?:(?:the |my )?(?:final |correct )?(?:answer|result)(?: is)?\W{0,6})?\d(?!\d{0,2}[.)][ \t]+\S)",
    re.IGNORECASE,
)

_SPACES = re.compile(r"(?<!\d)\s+|\s+(?!\d)")  # not the one between two numbers


def last_boxed(text: str) -> str | None:
    r"""The content of the last complete `\boxed{...}` that holds something, stripped; None without one.

    Braces may nest and escaped braces do not count. A box that never closes, as a truncated answer leaves it, and an empty
    one are passed over. Of a box in a box the inner one is taken. `\boxed 18` counts where no braces do.
    """
    if "boxed" not in text:
        return None
    opened: list[int | None] = []  # where the content of each box that is open begins, None for another brace
    begin = end = 0
    for mark in _BRACES.finditer(text):
        if mark["box"]:
            opened.append(mark.end())
        elif mark["open"]:
            opened.append(None)
        elif mark["close"]:
            start = opened.pop() if opened else None
            # A box around one that has closed begins before it.
            if start is not None and start > begin and text[start : mark.start()].strip():
                begin, end = start, mark.start()
    if end:
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
    hashes = after_hashes(text)
    if hashes is not None:
        return hashes
    tags = _ANSWER_TAGS.findall(text)
    return tags[-1] if tags else _said(text) or _last_number(text)


def answers_match(a: str | None, b: str | None) -> bool:
    """Whether two answers are the same.

    Numbers are compared by `normalise_number`, which reads no units (`18 dollars` is `18 cents`), other texts without
    regard to letter case, spaces, and LaTeX or Markdown around them. A missing or empty answer matches nothing.
    """
    if a is None or b is None:
        return False
    left, right = _comparable(a), _comparable(b)
    return left == right != ""


def _comparable(answer: str) -> str:
    return _SPACES.sub("", normalise_number(answer)).casefold().strip(".")


def after_hashes(text: str) -> str | None:
    """What follows the first `####` on its line, as GSM8K's own extractor reads it; None without an answer there.

    Where more text follows, such a line may be a heading: then it must begin with a number, or with "answer" and a number.
    """
    end = len(text.rstrip())
    for hashes in _HASHES.finditer(text):
        line = hashes[1].strip()
        if line and hashes.end() >= end:
            return line
        if _HEADED.match(fold(line)) and number_of(line) is not None:
            return line
    return None


def _said(text: str) -> str | None:
    """The number after the last "answer is", "answer:" that is followed by one."""
    for says in reversed(list(_SAYS.finditer(text))):
        line = text[says.end() :].partition("\n")[0]
        folded = fold(line)
        number = NUMBER.match(folded)
        if number is None:
            continue
        rest = folded[number.end() :]
        if _CALCULATION.match(rest):
            return _last_number(line)
        # "Answer:" may also head a solution; a number after which the sentence goes on is no answer then.
        heads_list = "\n" in says[0] and _LIST_ITEM.match(rest)
        heads_solution = says[1] in ":=" and (heads_list or re.search(r"\d", rest))
        if not heads_solution:
            return line[: number.end()].strip()
    return None


def _last_number(text: str) -> str | None:
    for line in reversed(text.split("\n")):
        numbers = list(NUMBER.finditer(fold(line)))
        if numbers:
            return line[numbers[-1].start() : numbers[-1].end()].strip()
    return None
