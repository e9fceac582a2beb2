"""Where the steps of a list begin and where the list ends, given the markers that open its items.

What stands before the first marker belongs to the first step, and what is nested to its item. A paragraph behind the last
item that is not indented (a summary, the final answer) is a step of its own, unless the other items have such paragraphs
too and nothing in it speaks of an ending.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from stepjepa.data.markers import Marker, counted_lists
from stepjepa.data.splitters_base import CharSpan, Uncut
from stepjepa.data.splitters_words import ANSWER, ENDING, REMARK, SO, SO_CJK, either

_START = re.compile(r"\n(?:(?:[^\S\n]*\n)+|(?=#{1,6}[ \t]))")  # of a paragraph: blank lines, or a heading
_OPENING = re.compile(
    r"""(?P<lead>[ \t]*)(?:
      (?P<heading>\#{1,3}(?!\#)|\#{4,6}(?!\#|[ \t]*(?!\d{1,2}[.)][ \t])[-+$\d(\\]))(?=[ \t]|\*|[^\W\d_])
    | (?P<rule>(?:-[ \t]*){3,}(?:\n|\Z)|(?:\*[ \t]*){3,}(?:\n|\Z)|(?:_[ \t]*){3,}(?:\n|\Z))
    | (?P<block>\$\$|\\\[|\\begin\{|```|~~~|\||>|[-*+\u2022][ \t]|\(?(?:\d{1,3}|[a-zA-Z]|[ivxIVX]+)[.)][ \t])
    )?""",
    re.VERBOSE,
)
_BOXED = re.compile(r"(?:\$\$|\\\[)\s*\\boxed")

# Words that speak of an ending, at the start of a paragraph.
_MARKUP = r"(?:[#>*_ \t\[(]|\\textbf\{|[\u2190-\u2bff\ufe0f\U0001f000-\U0001faff])*"
_HASHES = r"\#{4,6}[ \t]*(?!\d{1,2}[.)][ \t])[-+$\d(\\]"  # GSM8K's #### 5
_LABEL_WORD = f"(?i:(?:the |our |la |die |a |o )?(?:{either(ANSWER)}))"
_LABEL_END = r"[ \t]*(?:\*\*|__)?[ \t]*(?:[:：]|(?:\*\*|__)[ \t]*(?=\n|\Z))"
_LABEL = re.compile(rf"{_MARKUP}{_LABEL_WORD}{_LABEL_END}|{_HASHES}")
_LABEL_ALONE = re.compile(rf"{_MARKUP}{_LABEL_WORD}[ \t*_:：]*(?=\n|\Z)")
_LAST_WORDS = re.compile(rf"{_MARKUP}(?i:{either(ENDING)})(?![^\W_])")
_LABEL_LINE = re.compile(rf"\n(?:[*_\# \t]{{0,8}}{_LABEL_WORD}{_LABEL_END}|{_HASHES})")
_ANSWER = re.compile(rf"{_MARKUP}(?:{_LABEL_WORD}|(?i:{either(ENDING)}))(?![^\W_])|{_HASHES}|\$*\s*\\boxed")
_ANSWER_INSIDE = re.compile(r"\banswer\b[^\n.]{0,40}\bis\b|\\boxed")
_SO = re.compile(rf"{_MARKUP}(?:(?i:{either(SO)})(?![^\W_])|{either(SO_CJK)})")
_REMARK = re.compile(rf"{_MARKUP}(?i:{either(REMARK)})(?![^\W_])")
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
    if kind == "block" and _BOXED.match(text, match.end("lead")) and text[:start].rstrip()[-1:] in ".!?。":
        kind = "prose"
    if kind == "lead":
        first = text[match.end() : match.end() + 1]
        kind = "more" if first.islower() else "prose"
    return Paragraph(start, end, width, kind, len(match["heading"] or ""))


class Itemizer:
    """Finds the steps of one text, which is flat; `markers` are all that may open the items of a list in it."""

    def __init__(self, text: str, uncut: Uncut, markers: Sequence[Marker]):
        self.text = text
        self.uncut = uncut
        self.markers = markers
        self.paragraphs = paragraphs(text, uncut)
        self._starts = [paragraph.start for paragraph in self.paragraphs]

    def steps(self, lists: list[list[Marker]]) -> Steps:
        """Cuts of the given lists, in order; a list of another kind behind the last one is found on the way."""
        lists = list(lists)
        cuts: list[int] = []
        regions: list[CharSpan] = []
        number = 0
        while number < len(lists):
            items = lists[number]
            cuts += (self._opening(left, right) for left, right in zip(items[:-1], items[1:], strict=True))
            following = lists[number + 1][0].start if number + 1 < len(lists) else len(self.text)
            ending = self._ending(items, following)
            if number + 1 == len(lists) and ending and items[0].family != "step" and items[0].strength < 3:
                lists += self._others(ending[0].start, items[0].family)
            if number + 1 < len(lists):
                opened = lists[number + 1][0].start
                new = self._between(items[-1], opened, [part for part in ending if part.start < opened])
            else:
                new = self._tail(items[-1], ending)
            regions.append((items[0].start, min([*new, following])))
            cuts += new
            number += 1
        return Steps(cuts, regions)

    def without_prose(self, items: list[Marker]) -> bool:
        """Whether every paragraph between two items of a list belongs to the item before it at sight."""
        return not any(self._counted(left, right.start) for left, right in zip(items[:-1], items[1:], strict=True))

    def outside(self, regions: list[CharSpan]) -> int:
        """How many paragraphs of prose stand outside of the given stretches."""
        prose = [part.start for part in self.paragraphs if part.kind == "prose"]
        return len(prose) - sum(bisect_left(prose, end) - bisect_left(prose, start) for start, end in regions)

    def _opening(self, left: Marker, right: Marker) -> int:
        """Where the step of `right` begins: at its line, or at a heading right above it that stands over both."""
        if not self.paragraphs:
            return right.start
        above = self._counted(left, right.start)[-1:]
        if above and above[0].kind == "heading" and (not right.level or above[0].level < right.level):
            return above[0].start
        return right.start

    def _within(self, start: int, end: int) -> list[Paragraph]:
        first = bisect_left(self._starts, start)
        if first == len(self._starts) or self._starts[first] >= end:
            return []
        return self.paragraphs[first : bisect_left(self._starts, end, first)]

    def _counted(self, marker: Marker, end: int) -> list[Paragraph]:
        """The paragraphs of an item, behind its first one, that are not indented and could stand outside of it."""
        return [part for part in self._within(marker.start + 1, end) if self._stands_out(part, marker)]

    def _stands_out(self, part: Paragraph, marker: Marker) -> bool:
        if part.width > marker.width + 1 or part.kind not in ("prose", "heading"):
            return False
        # Headings below one that is a marker are its own, but for that of an answer.
        own = part.kind == "heading" and 0 < marker.level < part.level
        return not own or _LABEL_ALONE.match(self.text, part.start) is not None

    def _ending(self, items: list[Marker], end: int) -> list[Paragraph]:
        """The paragraphs behind the last item that do not belong to it."""
        if not self._within(items[-1].start + 1, end):
            return []
        before = [self._behind_title(left, right.start) for left, right in zip(items[:-1], items[1:], strict=True)]
        counts = [len(parts) for parts in before]
        least = min(counts, default=0)
        usual = max(counts, default=0) == least and (least == 0 or (len(counts) > 1 and not items[0].level))
        # Titles that announce nothing in one item announce nothing in the last one.
        bare = any(
            not self._within(left.start + 1, right.start) for left, right in zip(items[:-1], items[1:], strict=True)
        )
        parts = self._counted(items[-1], end) if bare else self._behind_title(items[-1], end)
        for number, part in enumerate(parts):
            so = number + 1 == len(parts) and self._concludes(part)
            so = so and not any(others and self._concludes(others[-1]) for others in before)
            if (
                part.kind == "heading"
                or _LABEL.match(self.text, part.start)
                or _LAST_WORDS.match(self.text, part.start)
            ):
                return parts[number:]
            if number >= least and (usual or so or self._ends(part)):
                return parts[number:]
            if number + 1 == len(parts) and self._answers(part) and self._says_more_than_a_title(items[-1], parts[0]):
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

    def _ends(self, part: Paragraph) -> bool:
        return bool(self._answers(part) or _REMARK.match(self.text, part.start))

    def _says_more_than_a_title(self, marker: Marker, following: Paragraph) -> bool:
        own = self.text[marker.start : following.start].strip()
        return len(own) > 80 or "=" in own or "\n" in own

    def _concludes(self, part: Paragraph) -> bool:
        return _SO.match(self.text, part.start) is not None

    def _answers(self, part: Paragraph) -> bool:
        return bool(_ANSWER.match(self.text, part.start) or _ANSWER_INSIDE.search(self.text, part.start, part.end))

    def _others(self, start: int, family: str) -> list[list[Marker]]:
        """Lists of other kinds behind `start`."""
        rest = [marker for marker in self.markers if marker.start > start and marker.family != family]
        return counted_lists(self.text, rest) if len(rest) > 1 else []

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
        open_ = False  # a title, or words with a colon, that wait for what they announce
        section = 0  # level of the heading under which we are
        for part in self._within(end, len(self.text)):
            counted = part.width <= last.width + 1 and part.kind in ("heading", "prose")
            if part.kind == "heading" and counted and not 0 < section < part.level:
                section = part.level
                cuts.append(part.start)
            elif counted and not open_ and (not section or _ANSWER.match(self.text, part.start)):
                section = 0
                cuts.append(part.start)
            lines = self.text[part.start : part.end]
            open_ = _announces(lines) or (part.kind == "heading" and "\n" not in lines.rstrip())
        return cuts

    def _answer_line(self, last: Marker, end: int) -> int | None:
        """A line of the last item, without a blank line before it, that gives the answer: ``#### 5``, ``Answer: 5``."""
        for match in _LABEL_LINE.finditer(self.text, last.start, end):
            start = match.start() + 1
            above = self.text[self.text.rfind("\n", 0, match.start()) + 1 : match.start()]
            titled = match.start() == self._line_end(last) and (last.level > 0 or _announces(above))
            if above.strip() and not titled and start not in self.uncut:
                return start
        return None

    def _line_end(self, marker: Marker) -> int:
        end = self.text.find("\n", marker.end)
        return end if end >= 0 else len(self.text)


def labelled_answer(text: str, uncut: Uncut, start: int) -> list[int]:
    """Where the last paragraph starts, if it is a labelled answer (``**Answer:** 5``) and not the first behind `start`."""
    parts = [part for part in paragraphs(text, uncut) if part.start > start]
    ends = len(parts) > 1 and parts[-1].kind == "prose" and _LABEL.match(text, parts[-1].start)
    return [parts[-1].start] if ends else []


def _announces(lines: str) -> bool:
    """Whether lines are a title, or end with a colon: what they announce follows."""
    lines = lines.rstrip()
    return lines.endswith((":", ":**", ":__")) or bool(_BOLD_LINE.match(lines))
