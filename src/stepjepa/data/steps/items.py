"""Where the steps of a list begin and where the list ends, given the markers that open its items.

What stands before the first marker belongs to the first step, and what is nested to its item. A paragraph behind the last
item that is not indented (a summary, the final answer) is a step of its own, unless the other items have such paragraphs
too and nothing in it speaks of an ending.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from itertools import pairwise
from typing import NamedTuple

from stepjepa.data.steps.markers import Marker
from stepjepa.data.steps.uncut import CharSpan, Uncut
from stepjepa.data.steps.words import either

_START = re.compile(r"\n(?:(?:[^\S\n]*\n)+|(?=#{1,6}[ \t]))")  # of a paragraph: blank lines, or a heading
_OPENING = re.compile(
    r"""(?P<lead>[ \t]*)(?:
      (?P<heading>\#{1,3}(?!\#)|\#{4,6}(?!\#|[ \t]*(?!\d{1,2}[.)][ \t])[-+$\d(\\]))(?=[ \t]|\*|[^\W\d_])
    | (?P<rule>(?:-[ \t]*){3,}(?:\n|\Z)|(?:\*[ \t]*){3,}(?:\n|\Z)|(?:_[ \t]*){3,}(?:\n|\Z))
    | (?P<block>\$\$|\\\[|\\begin\{|```|~~~|\||>|[-*+\u2022][ \t]|\(?(?:\d{1,3}|[a-zA-Z]|[ivxIVX]+)[.)][ \t])
    )?""",
    re.VERBOSE,
)

# Words that speak of an ending, at the start of a paragraph.
_MARKUP = r"(?:[#>*_ \t\[(]|\\textbf\{|[\u2190-\u2bff\ufe0f\U0001f000-\U0001faff])*"
_HASHES = r"\#{4,6}[ \t]*(?!\d{1,2}[.)][ \t])[-+$\d(\\]"  # GSM8K's #### 5
_LABEL_WORD = f"(?i:(?:the |our |la |die |a |o )?(?:{either('answer')}))"
_LABEL_END = r"[ \t]*(?:\*\*|__)?[ \t]*(?:[:：]|(?:\*\*|__)[ \t]*(?=\n|\Z))"
_LABEL = re.compile(rf"{_MARKUP}{_LABEL_WORD}{_LABEL_END}|{_HASHES}")
_LABEL_ALONE = re.compile(rf"{_MARKUP}{_LABEL_WORD}[ \t*_:：]*(?=\n|\Z)")
_LAST_WORDS = re.compile(rf"{_MARKUP}(?i:{either('ending')})(?![^\W_])")
_LABEL_LINE = re.compile(rf"\n(?:[*_\# \t]{{0,8}}{_LABEL_WORD}{_LABEL_END}|{_HASHES})")
_ANSWER = re.compile(rf"{_MARKUP}(?:{_LABEL_WORD}|(?i:{either('ending')}))(?![^\W_])|{_HASHES}|\$*\s*\\boxed")
_ANSWER_INSIDE = re.compile(r"\banswer\b[^\n.]{0,40}\bis\b|\\boxed")
_SO = re.compile(rf"{_MARKUP}(?:(?i:{either('so')})(?![^\W_])|{either('unspaced so')})")
_BOLD_LINE = re.compile(r"[ \t]*(?:\*\*|__)[^*\n]+(?:\*\*|__)[:.]?[ \t]*\Z")


class Paragraph(NamedTuple):
    """A paragraph: lines behind a blank one, or from a heading on.

    Attributes:
        start, end: its lines, the blank ones behind it included.
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


class Steps(NamedTuple):
    """Where steps begin (the first one excepted), and the stretches that the lists themselves take."""

    cuts: list[int]
    lists: list[CharSpan]


def paragraphs(text: str, uncut: Uncut) -> list[Paragraph]:
    """The paragraphs of `text` but for the first."""
    starts = [match.end() for match in _START.finditer(text) if match.end() < len(text)]
    starts = [start for start in starts if start not in uncut]
    return [_paragraph(text, start, end) for start, end in zip(starts, [*starts, len(text)][1:], strict=True)]


def _paragraph(text: str, start: int, end: int) -> Paragraph:
    match = _OPENING.match(text, start)
    assert match is not None  # everything in it is optional
    width = len(match["lead"].expandtabs(4))
    kind = match.lastgroup or "lead"
    if kind == "lead":
        first = text[match.end() : match.end() + 1]
        kind = "more" if first.islower() else "prose"
    return Paragraph(start, end, width, kind, len(match["heading"] or ""))


class Itemizer:
    """Finds the steps of one text, which is flat."""

    def __init__(self, text: str, uncut: Uncut):
        self.text, self.uncut = text, uncut
        self.paragraphs = paragraphs(text, uncut)
        self._starts = [paragraph.start for paragraph in self.paragraphs]

    def steps(self, lists: list[list[Marker]]) -> Steps:
        """Cuts of the given lists, in order."""
        cuts: list[int] = []
        regions: list[CharSpan] = []
        for items, later in zip(lists, [*lists[1:], None], strict=True):
            cuts += (item.start for item in items[1:])
            opened = later[0].start if later else len(self.text)
            ending = self._ending(items, opened)
            new = self._between(items[-1], opened, ending) if later else self._tail(items[-1], ending)
            regions.append((items[0].start, min([*new, opened])))
            cuts += new
        return Steps(cuts, regions)

    def without_prose(self, items: list[Marker]) -> bool:
        """Whether every paragraph between two items of a list belongs to the item before it at sight."""
        return not any(self._counted(left, right.start) for left, right in pairwise(items))

    def outside(self, regions: list[CharSpan]) -> int:
        """How many paragraphs of prose stand outside of the given stretches."""
        prose = [part.start for part in self.paragraphs if part.kind == "prose"]
        return len(prose) - sum(bisect_left(prose, end) - bisect_left(prose, start) for start, end in regions)

    def _within(self, start: int, end: int) -> list[Paragraph]:
        first = bisect_left(self._starts, start)
        if first == len(self._starts) or self._starts[first] >= end:
            return []
        return self.paragraphs[first : bisect_left(self._starts, end, first)]

    def _counted(self, marker: Marker, end: int) -> list[Paragraph]:
        """The paragraphs of an item, after its first one, that are not indented and could be outside of it."""
        return [part for part in self._within(marker.start + 1, end) if self._stands_out(part, marker)]

    def _stands_out(self, part: Paragraph, marker: Marker) -> bool:
        if part.width > marker.width + 1 or part.kind not in ("prose", "heading"):
            return False
        # Headings below one that is a marker are its own, but for that of an answer.
        own = part.kind == "heading" and 0 < marker.level < part.level
        return not own or _LABEL_ALONE.match(self.text, part.start) is not None

    def _ending(self, items: list[Marker], end: int) -> list[Paragraph]:
        """The paragraphs after the last item that do not belong to it."""
        parts = self._behind_title(items[-1], end)
        counts = [len(self._behind_title(left, right.start)) for left, right in pairwise(items)] if parts else []
        least = min(counts, default=0)
        usual = max(counts, default=0) == least and (least == 0 or (len(counts) > 1 and not items[0].level))
        for number, part in enumerate(parts):
            labelled = _LABEL.match(self.text, part.start) or _LAST_WORDS.match(self.text, part.start)
            ends = usual or self._answers(part) or (number + 1 == len(parts) and self._concludes(part))
            if part.kind == "heading" or labelled or (number >= least and ends):
                return parts[number:]
        return []

    def _behind_title(self, marker: Marker, end: int) -> list[Paragraph]:
        """`_counted` without the paragraph that a title, or words with a colon, announce right before it."""
        parts = self._counted(marker, end)
        if not parts:
            return parts
        following = self._within(marker.start + 1, end)[:1]
        if parts[:1] == following and parts[0].kind == "prose":
            title = self.text[marker.start : parts[0].start].strip()
            if _announces(title) or (marker.level and "\n" not in title):
                return parts[1:]
        return parts

    def _concludes(self, part: Paragraph) -> bool:
        return _SO.match(self.text, part.start) is not None

    def _answers(self, part: Paragraph) -> bool:
        return bool(_ANSWER.match(self.text, part.start) or _ANSWER_INSIDE.search(self.text, part.start, part.end))

    def _between(self, last: Marker, opened: int, ending: list[Paragraph]) -> list[int]:
        """Cuts between the last item of a list and the next list: conclusions of the one, the introduction of the other."""
        cuts = []
        for part in ending:
            cuts.append(part.start)
            if part.kind == "heading" or not (self._answers(part) or self._concludes(part)):
                return cuts
        if not ending:
            parts = self._within(last.start + 1, opened)
            title = parts[-1].start if parts else self.text.rfind("\n", 0, max(opened - 1, 0)) + 1
            begins = title > last.start and title not in self.uncut and not self.text[title].islower()
            if begins and _announces(self.text[title:opened]) and not self.text[title].isspace():
                return [title]
        return [*cuts, opened]

    def _tail(self, last: Marker, ending: list[Paragraph]) -> list[int]:
        """Cuts behind the last item of all."""
        cuts: list[int] = []
        end = ending[0].start if ending else len(self.text)
        line = self._answer_line(last, end)
        if line is not None:
            cuts.append(line)
        if not ending:
            return cuts
        section = announced = False  # under a heading; by a title, or words with a colon
        for part in self._within(end, len(self.text)):
            counted = part.width <= last.width + 1 and part.kind in ("heading", "prose")
            follows = announced or (section and not _ANSWER.match(self.text, part.start))
            if counted and (part.kind == "heading" or not follows):
                cuts.append(part.start)
                section = part.kind == "heading"
            lines = self.text[part.start : part.end]
            announced = _announces(lines)
        return cuts

    def _answer_line(self, last: Marker, end: int) -> int | None:
        """A line of the last item, without a blank line before it, that gives the answer: ``#### 5``, ``Answer: 5``."""
        for match in _LABEL_LINE.finditer(self.text, last.start, end):
            above = self.text[self.text.rfind("\n", 0, match.start()) + 1 : match.start()]
            titled = "\n" not in self.text[last.end : match.start()] and (last.level > 0 or _announces(above))
            if above.strip() and not titled and match.start() + 1 not in self.uncut:
                return match.start() + 1
        return None


def labelled_answer(text: str, uncut: Uncut, start: int) -> list[int]:
    """Where the last paragraph starts, if it is a labelled answer (``**Answer:** 5``) and not the first behind `start`."""
    parts = [part for part in paragraphs(text, uncut) if part.start > start]
    ends = len(parts) > 1 and parts[-1].kind == "prose" and _LABEL.match(text, parts[-1].start)
    return [parts[-1].start] if ends else []


def _announces(lines: str) -> bool:
    """Whether lines are a title, or end with a colon: what they announce follows."""
    lines = lines.rstrip()
    return lines.endswith((":", ":**", ":__")) or bool(_BOLD_LINE.match(lines))
