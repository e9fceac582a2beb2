"""An answer's text as all step splitters read it: the blocks that are never cut, and its paragraphs."""

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
    # A rule; maths, code, a table, a quote, an item of a list.
    | (?P<block>(?:-[ \t]*){3,}(?:\n|\Z)|(?:\*[ \t]*){3,}(?:\n|\Z)|(?:_[ \t]*){3,}(?:\n|\Z)
      |\$\$|\\\[|\\begin\{|```|~~~|\||>|[-*+\u2022][ \t]|\(?(?:\d{1,3}|[a-zA-Z]|[ivxIVX]+)[.)][ \t])
    )?""",
    re.VERBOSE,
)
_PLAIN = {
    **dict.fromkeys("\u00a0\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u3000\ufeff", " "),
    **dict.fromkeys("\u2028\u2029\x85", "\n"),
    **dict(zip("（）［］【】：＃＊－＞．", "()[][]:#*->、", strict=True)),
}
_FLAT = str.maketrans(_PLAIN)


class Paragraph(NamedTuple):
    """Lines after a blank one, or from a heading on.

    Attributes:
        start, end: its lines, the blank ones after it included.
        width: columns of white space before it.
        level: of the heading that it is, else 0.
        prose: whether it is one of words: no heading, rule, block, or item of a list, and no small letter first, with which
            the paragraph before goes on.
    """

    start: int
    end: int
    width: int
    level: int
    prose: bool


class Text:
    """A text with what the splitters need of it, each found when it is first asked for."""

    def __init__(self, text: str):
        self.text = text
        # Of the same length, with a line feed for every line end; a carriage return before one is a space.
        self.lines = text.replace("\r\n", " \n").replace("\r", "\n")

    @cached_property
    def flat(self) -> str:
        """`lines`, of the same length, with plain forms of what is written in many ways: a space for every kind of space,
        ASCII brackets and colons for full-width ones. A full-width stop becomes the ideographic comma, which marks numbers
        as well and needs no space after it either."""
        return self.lines if self.lines.isascii() else self.lines.translate(_FLAT)

    @cached_property
    def _blocks(self) -> list[UncutBlock]:
        return blocks_of(self.lines)

    @property
    def thoughts(self) -> list[CharSpan]:
        """The thinking blocks."""
        return [block.span for block in self._blocks if block.kind == "think"]

    @cached_property
    def blocks(self) -> list[CharSpan]:
        """All stretches that are never cut, in order of their starts: thinking (a block that does not close runs to the end,
        one that did not open starts with the text), code fences (one that does not close runs to the end), display maths and
        tables."""
        return sorted(block.span for block in self._blocks)

    @cached_property
    def _reach(self) -> tuple[list[int], list[int]]:
        """Where blocks start, and how far those up to each reach."""
        return [start for start, _ in self.blocks], list(accumulate((end for _, end in self.blocks), max))

    def in_block(self, position: int) -> bool:
        """Whether a cut before a character would be inside a block."""
        starts, reach = self._reach
        before = bisect_left(starts, position)
        return before > 0 and position < reach[before - 1]

    @cached_property
    def paragraphs(self) -> list[Paragraph]:
        """The paragraphs but for the first."""
        flat = self.flat
        starts = [match.end() for match in _PARAGRAPH.finditer(flat)]
        starts = [start for start in starts if start < len(flat) and not self.in_block(start)]
        paragraphs: list[Paragraph] = []
        for start, end in pairwise([*starts, len(flat)]):
            match = _OPENING.match(flat, start)
            assert match is not None  # everything in it is optional
            heading, block = match["heading"], match["block"]
            begins = flat[match.end() : match.end() + 1]
            prose = heading is None and block is None and not begins.islower()
            width = len(match["lead"].expandtabs(4))
            paragraphs.append(Paragraph(start, end, width, len(heading or ""), prose))
        return paragraphs

    @cached_property
    def _starts(self) -> list[int]:
        return [paragraph.start for paragraph in self.paragraphs]

    def between(self, start: int, end: int) -> list[Paragraph]:
        """The paragraphs that start in a stretch."""
        return self.paragraphs[bisect_left(self._starts, start) : bisect_left(self._starts, end)]

    def cut(self, cuts: Iterable[int]) -> list[CharSpan]:
        """Spans between the given positions, which cover the text; [] for a blank text.

        Cuts inside a block are dropped. A piece of white space alone joins the step before it (the first one: the next
        step), so that every step has something to say.
        """
        text = self.text
        kept = sorted(cut for cut in set(cuts) if 0 < cut < len(text) and not self.in_block(cut))
        spans: list[CharSpan] = []
        piece = 0
        for end in [*kept, len(text)]:
            if text[piece:end].strip():
                spans.append((piece if spans else 0, end))
            elif spans:
                spans[-1] = (spans[-1][0], end)
            piece = end
        return spans


text_of = lru_cache(maxsize=4)(Text)  # of a text that several ask for, one after the other
