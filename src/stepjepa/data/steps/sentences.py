"""Steps that are sentences."""

from __future__ import annotations

import re

from stepjepa.data.steps.text import CharSpan, Text

# A full stop after one of these ends no sentence; after the second ones, none where a number follows.
_ABBREVIATIONS = frozenset(
    "dr mr mrs ms prof st sr jr vs e.g i.e eg ie cf ca approx resp al incl excl z.b u.a d.h bzw vgl evtl inkl p.ex ex mme "
    "mlle sra dña ud uds".split()
)
_BEFORE_NUMBERS = frozenset("no nos nr fig figs eq eqs sec ch vol p pp pt art abb tab ref refs núm".split())
# Inline maths is passed over. One sign of several is enough: the last one before white space.
_END = re.compile(
    r"(?P<maths>(?<![\\$\w])\$(?![\s$])[^$\n]{1,200}(?<![\s\\])\$(?![\d$])|\\\([^\n]{0,200}?\\\))"
    r"|(?P<stop>[.!?\u2026])(?P<close>[\"'”’»)\]*_]*)(?P<gap>\s+)"
    r"|(?P<wide>[。！？｡।॥؟۔։።]+)(?P<quote>[」』”’）)】\"*]*)\s*"
    r"|(?P<line>\n)\s*"
)
_WORD_BEFORE = re.compile(r"[^\s(\[\"'“‘]*\Z")
# What the line before a stop may hold if the stop belongs to the sign of a list's item; and such a line as a whole.
_ITEM_SIGN = re.compile(r"[ \t>*_#-]*(?:\d{1,3}|[a-zA-Z]|[ivxIVX]{1,5})\Z")
_ITEM = re.compile(r"(?:[-*+\u2022][ \t]|#{1,6}[ \t]|\||\(?(?:\d{1,3}|[a-zA-Z])[.)][ \t])")
_INITIAL = re.compile(r"[A-Z]\.[ \t]")
_INITIALS = re.compile(r"(?:[A-Z]\.)+[A-Z]")
_NAME_BEFORE = re.compile(r"(?:\A|[^\w\s][ \t]+|\b[^\W\d_a-z]\w*\.?[ \t]+)\Z")
_OPENERS = "\"'“‘«„([*_¿¡「『（"


def sentences(text: Text) -> list[CharSpan]:
    """Every sentence is a step: it ends with ``. ! ? …`` before white space and no small letter, with ``。 ！ ？ ।`` and the
    like, with a blank line, and with a line whose next one does not go on with a small letter. Abbreviations, decimal
    numbers, initials, signs of list items and inline maths end none.
    """
    flat = text.flat
    ends = [match for match in _END.finditer(flat) if match["maths"] is None and match.end() < len(flat)]
    return text.cut(match.end() for match in ends if _ends_sentence(flat, match))


def _ends_sentence(text: str, match: re.Match[str]) -> bool:
    """Whether a stop or a line's end, and the white space after it, ends a sentence."""
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
    sign_before = text[max(start - 1, 0) : start]
    if not stop:
        return sign_before not in (",", "(")
    if stop != "." or match["close"] or sign_before in (".", "!", "?", "\u2026"):
        return True
    before = text[max(start - 24, 0) : start]
    match_before = _WORD_BEFORE.search(before)
    word = match_before[0] if match_before else ""
    if not word:
        return True
    line = before.rpartition("\n")[2]
    opens_item = len(line) < 24 and _ITEM_SIGN.match(line)
    return not opens_item and not _short(word, text, start, following, first)


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
