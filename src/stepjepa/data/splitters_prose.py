"""Splitters for text without markers: sentences, a pattern of the user's own, and steps that a data set holds already."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from stepjepa.data.splitters_base import CharSpan, Uncut, flat, spans_from_cuts
from stepjepa.data.splitters_words import ABBREVIATIONS, BEFORE_NUMBERS, split
from stepjepa.errors import ConfigError, DataError

PATTERN_SECONDS = 2.0  # that a pattern may take for one answer

_ABBREVIATIONS = frozenset(split(ABBREVIATIONS))
_BEFORE_NUMBERS = frozenset(split(BEFORE_NUMBERS))
# One sign of several is enough: the last one before white space.
_END = re.compile(
    r"(?P<stop>[.!?\u2026])(?P<close>[\"'”’»)\]*_]*)(?P<gap>\s+)"
    r"|(?P<wide>[。！？｡।॥؟۔։።]+)(?P<quote>[」』”’）)】\"*]*)\s*"
    r"|(?P<line>\n)\s*"
)
_WORD_BEFORE = re.compile(r"[^\s(\[\"'“‘]*\Z")
_INLINE_MATHS = re.compile(r"(?<![\\$\w])\$(?![\s$])[^$\n]{1,200}(?<![\s\\])\$(?![\d$])|\\\([^\n]{0,200}?\\\)")
# What the line before a stop may hold if the stop belongs to the sign of a list's item; and such a line as a whole.
_ITEM_SIGN = re.compile(r"[ \t>*_#-]*(?:\d{1,3}|[a-zA-Z]|[ivxIVX]{1,5})\Z")
_ITEM = re.compile(r"(?:[-*+\u2022][ \t]|#{1,6}[ \t]|\||\(?(?:\d{1,3}|[a-zA-Z])[.)][ \t])")
_INITIAL = re.compile(r"[A-Z]\.[ \t]")
_INITIALS = re.compile(r"(?:[A-Z]\.)+[A-Z]")
_NAME_BEFORE = re.compile(r"(?:\A|[^\w\s][ \t]+|\b[^\W\d_a-z]\w*\.?[ \t]+)\Z")
_OPENERS = "\"'“‘«„([*_¿¡「『（"


@dataclass(frozen=True)
class SentenceSplitter:
    """Every sentence is a step: it ends with ``. ! ? …`` before white space and no small letter, with ``。 ！ ？ ।`` and the
    like, with a blank line, and with a line whose next one does not go on with a small letter. Abbreviations, decimal
    numbers, initials, signs of list items and inline maths end none.
    """

    name: ClassVar[str] = "sentence"

    def spans(self, text: str) -> list[CharSpan]:
        """See `StepSplitter.spans`."""
        plain = flat(text)
        maths = [match.span() for match in _INLINE_MATHS.finditer(plain)] if "$" in plain or "\\(" in plain else []
        inside = Uncut("")
        inside.hold(maths)
        cuts = [
            match.end()
            for match in _END.finditer(plain)
            if match.end() < len(plain) and match.start() not in inside and _ends_sentence(plain, match)
        ]
        return spans_from_cuts(text, cuts)


def _ends_sentence(text: str, match: re.Match[str]) -> bool:
    """Whether a stop or a line's end, and the white space behind it, ends a sentence."""
    start, following = match.span()
    if match["wide"]:
        return not match["quote"] or text[following - 1].isspace()
    stop, gap = match.group("stop", "gap")
    breaks = gap.count("\n") if stop else text.count("\n", start, following)
    if breaks > 1 or (breaks and _ITEM.match(text, following)):
        return True
    if text.startswith("$ ", following):  # the end of inline maths
        return False
    first = next((char for char in text[following : following + 8] if char not in _OPENERS), "")
    if first.islower():
        return False
    if not stop:
        return text[max(start - 1, 0) : start] not in (",", "(")
    if stop != "." or match["close"] or text[max(start - 1, 0) : start] in (".", "!", "?", "\u2026"):
        return True
    found = _WORD_BEFORE.search(text, max(start - 24, 0), start)
    word = found[0] if found else ""
    return not word or not (_short(word, text, start, following, first) or _is_item_sign(text, start))


def _short(word: str, text: str, start: int, following: int, first: str) -> bool:
    """Whether a word before a full stop is shortened: the stop ends no sentence."""
    if word.lower() in _ABBREVIATIONS or (first.isdigit() and word.lower() in _BEFORE_NUMBERS):
        return True
    if len(word) == 1 and word.isalpha():
        # "J. K. Rowling" and "z. B.", but "the point P. Then": what stands around a single letter tells.
        if _INITIAL.match(text, following):
            return True
        return (
            word.isupper() and first.isupper() and _NAME_BEFORE.search(text, max(start - 24, 0), start - 1) is not None
        )
    return _INITIALS.fullmatch(word) is not None


def _is_item_sign(text: str, start: int) -> bool:
    before = text[max(start - 24, 0) : start].rpartition("\n")[2]
    return len(before) < 24 and _ITEM_SIGN.match(before) is not None


@dataclass(frozen=True)
class RegexSplitter:
    """Steps open where a pattern matches. With a group called ``start`` they open where that group does, with one called
    ``end`` they end with it. ``^`` and ``$`` stand for the ends of a line.

    Raises:
        ConfigError: the pattern is broken or matches an empty text; later, when it takes too long for an answer.
    """

    name: ClassVar[str] = "regex"
    pattern: str

    def __post_init__(self) -> None:
        _compiled(self.pattern)

    def spans(self, text: str) -> list[CharSpan]:
        """See `StepSplitter.spans`."""
        pattern = _compiled(self.pattern)
        opens, ends = "start" in pattern.groupindex, "end" in pattern.groupindex
        cuts = []
        try:
            for match in pattern.finditer(text, timeout=PATTERN_SECONDS):
                if ends and match["end"] is not None:
                    cuts.append(match.end("end"))
                if (opens and match["start"] is not None) or not (opens or ends):
                    cuts.append(match.start("start" if opens else 0))
        except TimeoutError:
            raise ConfigError(
                f"the pattern {self.pattern!r} of step_splitter=regex takes more than {PATTERN_SECONDS:g} seconds for an"
                f" answer of {len(text):,} characters; avoid repetitions inside repetitions, as in (a+)+"
            ) from None
        return spans_from_cuts(text, cuts)


@lru_cache(maxsize=16)
def _compiled(pattern: str) -> Any:
    """The pattern, for the engine that transformers' tokenizers bring along: unlike `re` it can be told to give up."""
    if not pattern:
        raise ConfigError("step_splitter=regex needs a pattern; give it in step_separator, such as '^Step [0-9]+'")
    regex = importlib.import_module("regex")
    try:
        compiled = regex.compile(pattern, regex.MULTILINE)
        empty = compiled.search("", timeout=PATTERN_SECONDS) is not None
    except (regex.error, TimeoutError, OverflowError, RecursionError) as error:
        raise ConfigError(f"the pattern {pattern!r} of step_splitter=regex is broken: {error}") from None
    if empty:
        raise ConfigError(
            f"the pattern {pattern!r} of step_splitter=regex matches an empty text, so it would cut at every character"
        )
    return compiled


def spans_of_steps(text: str, steps: Sequence[str]) -> list[CharSpan]:
    """Spans of steps that are known already, such as those of a column, found one behind the other in `text`.

    White space at a step's ends does not count, and runs of it inside may differ. What stands before the first step
    belongs to it, what stands between two to the one before. Such steps may cut thinking blocks, code and maths.

    Raises:
        DataError: a step is no text, or does not stand in `text` behind the one before.
    """
    starts: list[int] = []
    reached = 0
    for number, step in enumerate(steps, start=1):
        if not isinstance(step, str):
            raise DataError(f"step {number} of {len(steps)} is no text but {type(step).__name__}")
        words = step.strip()
        if not words:
            continue
        start = text.find(words, reached)
        end = start + len(words)
        if start < 0:
            loose = re.compile(r"\s+".join(map(re.escape, words.split()))).search(text, reached)
            if loose is None:
                where = f"behind step {number - 1}" if number > 1 else "at all"
                short = words if len(words) <= 60 else f"{words[:60]}..."
                raise DataError(f"step {number} of {len(steps)} does not stand in the answer {where}: {short!r}")
            start, end = loose.span()
        starts.append(start)
        reached = end
    if not starts and not text.strip():
        return []
    cuts = starts[1:]
    return list(zip([0, *cuts], [*cuts, len(text)], strict=True))


def join_steps(steps: Sequence[str], separator: str = "\n\n") -> tuple[str, list[CharSpan]]:
    """One text of steps that are known already, and their spans in it. Blank steps are left out."""
    filled = [step for step in steps if step.strip()]
    text = separator.join(filled)
    ends, reached = [], 0
    for step in filled:
        reached += len(step) + len(separator)
        ends.append(reached)
    return text, spans_from_cuts(text, ends[:-1], Uncut(""))
