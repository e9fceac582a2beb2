"""An answer's text as all step splitters read it: the blocks that are never cut, its paragraphs and its sentences."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from stepjepa.data.blocks import UncutBlock, blocks_of

CharSpan = tuple[int, int]

_PARAGRAPH = re.compile(r"\n(?:(?:[^\S\n]*\n)+|(?=#{1,6}[ \t]))")  # its start: blank lines, or a heading
_OPENING = re.compile(
    r"""(?P<lead>[ \t]*)(?:
      (?P<heading>\#{1,3}(?!\#)|\#{4,6}(?!\#|[ \t]*(?!\d{1,2}[.)][ \t])[-+$\d(\\]))(?=[ \t]|\*|[^\W\d_])
    | (?P<rule>(?:-[ \t]*){3,}(?:\n|\Z)|(?:\*[ \t]*){3,}(?:\n|\Z)|(?:_[ \t]*){3,}(?:\n|\Z))
    | (?P<block>\$\$|\\\[|\\begin\{|```|~~~|\||>|[-*+\u2022][ \t]|\(?(?:\d{1,3}|[a-zA-Z]|[ivxIVX]+)[.)][ \t])
    )?""",
    re.VERBOSE,
)

_PLAIN = {
    **dict.fromkeys("\u00a0\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u3000\ufeff", " "),
    **dict.fromkeys("\u2028\u2029\x85", "\n"),
    **{chr(code + 0xFEE0): chr(code) for code in (*range(0x41, 0x5B), *range(0x61, 0x7B))},
    **dict(zip("（）［］【】：＃＊－＞．", "()[][]:#*->、", strict=True)),
}
_WIDE_SIGNS = re.compile(f"[{''.join(map(re.escape, _PLAIN))}]")


class Paragraph(NamedTuple):
    """Lines after a blank one, or from a heading on.

    Attributes:
        start, end: its lines, the blank ones after it included.
        width: columns of white space before it.
        kind: ``heading``, ``rule``, ``block`` (maths, code, a table, a quote, an item of a list), ``more`` (a small letter
            first: the paragraph before goes on) or ``prose``.
        level: of the heading, else 0.
    """

    start: int
    end: int
    width: int
    kind: str
    level: int


class Text:
    """A text with what the splitters need of it, each found when it is first asked for.

    ``position in text`` is whether a cut there would be inside a block: a thinking block (one that does not close runs to
    the end, one that did not open starts with the text), a code fence (one that does not close runs to the end), display
    maths or a table.
    """

    def __init__(self, text: str):
        self.text = text
        # Of the same length, with a line feed for every line end; a carriage return before one is a space.
        self.lines = text.replace("\r\n", " \n").replace("\r", "\n") if "\r" in text else text

    @cached_property
    def flat(self) -> str:
        """`lines`, of the same length, with plain forms of what is written in many ways: a space for every kind of space,
        ASCII brackets and colons for full-width ones. A full-width stop becomes the ideographic comma, which marks numbers
        as well and needs no space after it either."""
        return self.lines if self.text.isascii() else _WIDE_SIGNS.sub(lambda sign: _PLAIN[sign[0]], self.lines)

    @cached_property
    def _named_blocks(self) -> list[UncutBlock]:
        return blocks_of(self.lines)

    @property
    def thoughts(self) -> list[CharSpan]:
        """The thinking blocks."""
        return [block.span for block in self._named_blocks if block.kind == "think"]

    @cached_property
    def blocks(self) -> list[CharSpan]:
        """All stretches that are never cut, in order of their starts."""
        return sorted(block.span for block in self._named_blocks)

    @cached_property
    def _reach(self) -> tuple[list[int], list[int]]:
        return [start for start, _ in self.blocks], list(accumulate((end for _, end in self.blocks), max))

    @cached_property
    def paragraphs(self) -> list[Paragraph]:
        """The paragraphs but for the first."""
        flat, found = self.flat, list[Paragraph]()
        starts = [
            match.end() for match in _PARAGRAPH.finditer(flat) if match.end() < len(flat) and match.end() not in self
        ]
        for start, end in pairwise([*starts, len(flat)]):
            match = _OPENING.match(flat, start)
            assert match is not None  # everything in it is optional
            kind = match.lastgroup or "lead"
            if kind == "lead":
                kind = "more" if flat[match.end() : match.end() + 1].islower() else "prose"
            found.append(Paragraph(start, end, len(match["lead"].expandtabs(4)), kind, len(match["heading"] or "")))
        return found

    def __contains__(self, position: int) -> bool:
        starts, reach = self._reach
        before = bisect_left(starts, position)
        return before > 0 and position < reach[before - 1]

    def cut(self, cuts: Iterable[int]) -> list[CharSpan]:
        """Spans between the given positions, which cover the text; [] for a blank text.

        Cuts inside a block are dropped. A piece of white space alone joins the step before it (the first one: the next
        step), so that every step has something to say.
        """
        text = self.text
        kept = sorted({cut for cut in cuts if 0 < cut < len(text)})
        if kept and self.blocks:
            kept = [cut for cut in kept if cut not in self]
        spans: list[CharSpan] = []
        piece = 0
        for end in [*kept, len(text)]:
            if end > piece and not text[piece:end].isspace():
                spans.append((piece if spans else 0, end))
            elif spans:
                spans[-1] = (spans[-1][0], end)
            piece = end
        return spans


text_of = lru_cache(maxsize=4)(Text)  # of a text that several ask for, one after the other


# Sentences

# A full stop after one of these ends no sentence; after the second ones, none where a number follows.
_ABBREVIATIONS = frozenset(
    "dr mr mrs ms prof st sr jr vs e.g i.e eg ie cf ca approx resp al incl excl z.b u.a d.h bzw vgl evtl inkl p.ex ex mme "
    "mlle sra dña ud uds".split()
)
_BEFORE_NUMBERS = frozenset("no nos nr fig figs eq eqs sec ch vol p pp pt art abb tab ref refs núm".split())
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


def sentences(text: Text) -> list[CharSpan]:
    """Every sentence is a step: it ends with ``. ! ? …`` before white space and no small letter, with ``。 ！ ？ ।`` and the
    like, with a blank line, and with a line whose next one does not go on with a small letter. Abbreviations, decimal
    numbers, initials, signs of list items and inline maths end none.
    """
    flat = text.flat
    maths = [m.span() for m in _INLINE_MATHS.finditer(flat)] if "$" in flat or "\\(" in flat else []
    starts = [start for start, _ in maths]
    cuts = []
    for end in _END.finditer(flat):
        before = bisect_left(starts, end.start())
        inside = before > 0 and end.start() < maths[before - 1][1]
        if end.end() < len(flat) and not inside and _ends_sentence(flat, end):
            cuts.append(end.end())
    return text.cut(cuts)


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
    if not stop:
        return text[max(start - 1, 0) : start] not in (",", "(")
    if stop != "." or match["close"] or text[max(start - 1, 0) : start] in (".", "!", "?", "\u2026"):
        return True
    found = _WORD_BEFORE.search(text, max(start - 24, 0), start)
    word = found[0] if found else ""
    before = text[max(start - 24, 0) : start].rpartition("\n")[2]
    of_item = len(before) < 24 and _ITEM_SIGN.match(before)
    return not word or not (_short(word, text, start, following, first) or of_item)


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
