"""Steps that open with a mark: a number, a word such as *First* and *Then*, a heading; and where the last of them ends.

What precedes the first mark belongs to the first step, and what is nested to its step. A paragraph after the last item that
is not indented (a summary, the final answer) is a step of its own, unless the other items have such paragraphs too and it is
not labelled as an answer.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from itertools import pairwise
from typing import NamedTuple

from stepjepa.data.steps.markers import Marker, counted_lists, find_markers
from stepjepa.data.steps.text import CharSpan, Text
from stepjepa.data.steps.words import WORDS, either

_COMMA = "[,:，、：]"
_UNSPACED = {use: "|".join(WORDS[use]).replace("*", _COMMA) for use in ("unspaced", "unspaced next")}
# Behind a connective: a comma or a colon, or the sentence goes on with a small letter ("First we add").
_CONNECTIVE = re.compile(
    r"\n[ \t]*(?:\*{1,3}|__)?(?=[^\W\d_])(?:"
    rf"(?:(?P<first>(?i:{either('first')}))|(?i:{either('next')}|{either('last')}))(?![\w'’-])"
    rf"(?=(?:\*{{1,3}}|__)?[ \t]*{_COMMA}|[ \t]+[^\W\d_A-Z])"
    rf"|(?P<cjk>{_UNSPACED['unspaced']})|{_UNSPACED['unspaced next']})"
)
_HEADING = re.compile(
    r"\n(?:(?P<hashes>#{1,6})(?:[ \t]+(?=\S)(?![-+$]?\d+[ \t]*(?:\n|\Z))|(?=[^\W\d_]))"
    r"|(?P<bold>(?:\*\*|__)(?=\S)[^*\n]{1,100}(?:\*\*|__):?[ \t]*(?=\n|\Z)))"
)
_BLANK_BEHIND = re.compile(r"[ \t]*\n[ \t]*(?:\n|\Z)")
_PARAGRAPH = re.compile(r"\n(?:(?:[^\S\n]*\n)+|(?=#{1,6}[ \t]))")  # its start: blank lines, or a heading
_OPENING = re.compile(
    r"""(?P<lead>[ \t]*)(?:
      (?P<heading>\#{1,3}(?!\#)|\#{4,6}(?!\#|[ \t]*(?!\d{1,2}[.)][ \t])[-+$\d(\\]))(?=[ \t]|\*|[^\W\d_])
    | (?P<rule>(?:-[ \t]*){3,}(?:\n|\Z)|(?:\*[ \t]*){3,}(?:\n|\Z)|(?:_[ \t]*){3,}(?:\n|\Z))
    | (?P<block>\$\$|\\\[|\\begin\{|```|~~~|\||>|[-*+\u2022][ \t]|\(?(?:\d{1,3}|[a-zA-Z]|[ivxIVX]+)[.)][ \t])
    )?""",
    re.VERBOSE,
)
# What labels an answer: a word and a colon, GSM8K's #### 5, words of an ending.
_HASHES = r"\#{4,6}[ \t]*(?!\d{1,2}[.)][ \t])[-+$\d(\\]"
_WORD = f"(?i:(?:the |our |la |die |a |o )?(?:{either('answer')}))"
_COLON = r"[ \t]*(?:\*\*|__)?[ \t]*(?:[:：]|(?:\*\*|__)[ \t]*(?=\n|\Z))"
_ENDING = rf"(?i:{either('ending')})(?![^\W_])"
_LABEL = re.compile(rf"(?:[#>*_ \t\[(]|\\textbf\{{)*(?:{_WORD}{_COLON}|{_ENDING})|{_HASHES}")
_ANSWER = re.compile(rf"[#>*_ \t\[(]*(?:{_WORD}|{_ENDING})(?![^\W_])|{_HASHES}|\$*\s*\\boxed")
_ANSWER_INSIDE = re.compile(r"\banswer\b[^\n.]{0,40}\bis\b|\\boxed")
_SO = re.compile(rf"[#>*_ \t\[(]*(?:(?i:{either('so')})(?![^\W_])|{either('unspaced so')})")
_LABEL_ALONE = re.compile(rf"[#*_ \t]*{_WORD}[ \t*_:：]*(?=\n|\Z)")
_LABEL_LINE = re.compile(rf"\n(?:[*_\# \t]{{0,8}}{_WORD}{_COLON}|{_HASHES})")
_BOLD_LINE = re.compile(r"[ \t]*(?:\*\*|__)[^*\n]+(?:\*\*|__)[:.]?[ \t]*\Z")


class Marked(NamedTuple):
    """The steps of a text, and whether their marks are so clear that it is not read in another way: step words, marks in
    bold or headings, a list that most of the text is, connectives or headings that open every paragraph."""

    spans: list[CharSpan]
    clear: bool = False


def numbered(text: Text) -> Marked:
    """Steps open with a numbered marker at the start of a line, alone or in bold, in a heading or after a bullet.

    Markers are step words with a number (``Step 3:``, ``Schritt 3:``, ``第三步``), and numbers, Roman numbers and letters
    that count up: ``3.``, ``3)``, ``(3)``, ``III.``, ``c)``, ``３、``, ``③``. What precedes the first marker belongs to the
    first step, nested items and what is indented to their step. A summary or an answer after the last item, after a blank
    line and not indented, is a step of its own. A text with fewer than two markers is one step.
    """
    markers = find_markers(text)
    lists = counted_lists(text.flat, markers) if len(markers) > 1 else []
    if not lists:
        return Marked(text.cut(()))
    cuts, regions = _Lists(text).cuts(lists)
    spans = text.cut(cuts)
    strong = lists[0][0].family == "step" or lists[0][0].strength > 1
    return Marked(spans, strong or (len(spans) > 1 and _prevail(text, regions)))


def _prevail(text: Text, regions: list[CharSpan]) -> bool:
    """Whether lists are what the text is about: a third of it, or at most two paragraphs are around them."""
    inside = sum(end - start for start, end in regions)
    thoughts = sum(end - start for start, end in text.thoughts)
    prose = [part.start for part in _paragraphs(text) if part.kind == "prose"]
    around = [start for start in prose if not any(begin <= start < end for begin, end in regions)]
    return 3 * inside >= len(text.text) - thoughts or len(around) < 3


def connected(text: Text) -> Marked:
    """Steps open with a word such as *First*, *Next*, *Then* or *Finally*, in many languages, at the start of a paragraph
    (of a line, where no two paragraphs do). Everything else is as in `numbered`.
    """
    flat = text.flat
    markers = []
    for match in _CONNECTIVE.finditer("\n" + flat):
        if match.start() not in text:
            first = match["first"] is not None or match["cjk"] is not None
            markers.append(Marker(match.start(), value=1 if first else None, end=match.end() - 1))
    opening = len(flat) - len(flat.lstrip())
    opened = [marker for marker in markers if marker.start <= opening or _after_blank(flat, marker.start)]
    if len(opened) > 1:  # others are lines that happen to wrap there
        markers = opened
    if len(markers) < 2 or (markers[0].value != 1 and len(markers) < 3):
        return Marked(text.cut(()))
    lists = _Lists(text)
    alone = not any(lists.counted(left, right.start) for left, right in pairwise(markers))
    return Marked(text.cut(lists.cuts([markers])[0]), len(opened) > 1 and alone)


def headed(text: Text) -> Marked:
    """Steps are the sections under the headings of the highest level that occurs twice, else under bold lines. What precedes
    the first heading belongs to the first step; a labelled answer at the end of the last section is one of its own.
    """
    levels: dict[int, list[int]] = {}
    alone = 0  # bold lines with a blank line after
    for match in _HEADING.finditer("\n" + text.flat):
        start = match.start()
        if start not in text and (match["hashes"] or start == 0 or _after_blank(text.flat, start)):
            levels.setdefault(len(match["hashes"] or "1234567"), []).append(start)
            alone += match["bold"] is not None and bool(_BLANK_BEHIND.match(text.flat, match.end() - 1))
    level = min((level for level in levels if len(levels[level]) > 1), default=0)
    starts = levels.get(level, [])
    cuts = starts[1:]
    parts = [part for part in _paragraphs(text) if starts and part.start > starts[-1]]
    if len(parts) > 1 and parts[-1].kind == "prose" and _LABEL.match(text.flat, parts[-1].start):
        cuts.append(parts[-1].start)
    return Marked(text.cut(cuts), 0 < level < 7 or 2 * alone > len(starts) > 0)


def _after_blank(text: str, start: int) -> bool:
    """Whether the line before the one at `start` is blank."""
    return start > 1 and not text[text.rfind("\n", 0, start - 1) + 1 : start].strip()


class _Paragraph(NamedTuple):
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


def _paragraphs(text: Text) -> list[_Paragraph]:
    """The paragraphs of a text but for the first."""
    flat, found = text.flat, list[_Paragraph]()
    starts = [match.end() for match in _PARAGRAPH.finditer(flat) if match.end() < len(flat) and match.end() not in text]
    for start, end in pairwise([*starts, len(flat)]):
        match = _OPENING.match(flat, start)
        assert match is not None  # everything in it is optional
        kind = match.lastgroup or "lead"
        if kind == "lead":
            kind = "more" if flat[match.end() : match.end() + 1].islower() else "prose"
        found.append(_Paragraph(start, end, len(match["lead"].expandtabs(4)), kind, len(match["heading"] or "")))
    return found


class _Lists:
    """Finds where the items of a text's lists begin, and where each list ends."""

    def __init__(self, text: Text):
        self.text, self.flat = text, text.flat
        self.paragraphs = _paragraphs(text)
        self._starts = [paragraph.start for paragraph in self.paragraphs]

    def cuts(self, lists: list[list[Marker]]) -> tuple[list[int], list[CharSpan]]:
        """Where steps begin (the first one excepted), and the stretches that the lists themselves take."""
        cuts: list[int] = []
        regions: list[CharSpan] = []
        for items, later in zip(lists, [*lists[1:], None], strict=True):
            cuts += (item.start for item in items[1:])
            end = later[0].start if later else len(self.flat)
            ending = self._ending(items, end)
            last = items[-1]
            new = self._tail(last, ending) if later is None else self._between(last, end, ending)
            regions.append((items[0].start, min([*new, end])))
            cuts += new
        return cuts, regions

    def counted(self, marker: Marker, end: int) -> list[_Paragraph]:
        """The paragraphs of an item, after its first one, that are not indented and could be outside of it."""
        found = []
        for part in self._within(marker.start + 1, end):
            # Headings below one that is a marker are its own, but for that of an answer.
            own = 0 < marker.level < part.level and not _LABEL_ALONE.match(self.flat, part.start)
            if part.width <= marker.width + 1 and part.kind in ("prose", "heading") and not own:
                found.append(part)
        return found

    def _within(self, start: int, end: int) -> list[_Paragraph]:
        first = bisect_left(self._starts, start)
        return self.paragraphs[first : bisect_left(self._starts, end, first)]

    def _ending(self, items: list[Marker], end: int) -> list[_Paragraph]:
        """The paragraphs after the last item that do not belong to it."""
        parts = self._behind_title(items[-1], end)
        if not parts:
            return []
        counts = [len(self._behind_title(left, right.start)) for left, right in pairwise(items)]
        least = min(counts, default=0)
        usual = max(counts, default=0) == least and (least == 0 or (len(counts) > 1 and not items[0].level))
        for number, part in enumerate(parts):
            concludes = self._answers(part) or (part is parts[-1] and _SO.match(self.flat, part.start))
            labelled = part.kind == "heading" or _LABEL.match(self.flat, part.start)
            if labelled or (number >= least and (usual or concludes)):
                return parts[number:]
        return []

    def _answers(self, part: _Paragraph) -> bool:
        return bool(_ANSWER.match(self.flat, part.start) or _ANSWER_INSIDE.search(self.flat, part.start, part.end))

    def _behind_title(self, marker: Marker, end: int) -> list[_Paragraph]:
        """`counted` without the paragraph that a title, or words with a colon, introduce right before it."""
        parts = self.counted(marker, end)
        if parts and parts[0].kind == "prose" and parts[:1] == self._within(marker.start + 1, end)[:1]:
            title = self.flat[marker.start : parts[0].start].strip()
            if _introduces(title) or (marker.level and "\n" not in title):
                return parts[1:]
        return parts

    def _between(self, last: Marker, opened: int, ending: list[_Paragraph]) -> list[int]:
        """Where the steps between two lists begin: conclusions of the one, then the other with what introduces it."""
        cuts = []
        for part in ending:
            cuts.append(part.start)
            if part.kind == "heading" or not (self._answers(part) or _SO.match(self.flat, part.start)):
                return cuts
        parts = self._within(last.start + 1, opened)
        title = parts[-1].start if parts else self.flat.rfind("\n", 0, max(opened - 1, 0)) + 1
        begins = last.start < title < opened and title not in self.text
        if not ending and begins and _introduces(self.flat[title:opened]):
            first = self.flat[title]
            return [opened] if first.islower() or first.isspace() else [title]
        return [*cuts, opened]

    def _tail(self, last: Marker, ending: list[_Paragraph]) -> list[int]:
        """Where the steps after the last item of all begin."""
        end = ending[0].start if ending else len(self.flat)
        line = self._answer_line(last, end)
        cuts = [] if line is None else [line]
        section = introduced = False  # under a heading; by a title, or words with a colon
        for part in self._within(end, len(self.flat)):
            counted = part.width <= last.width + 1 and part.kind in ("heading", "prose")
            follows = introduced or (section and not _LABEL.match(self.flat, part.start))
            if counted and (part.kind == "heading" or not follows):
                cuts.append(part.start)
                section = part.kind == "heading"
            introduced = _introduces(self.flat[part.start : part.end])
        return cuts

    def _answer_line(self, last: Marker, end: int) -> int | None:
        """A line of the last item, without a blank line before it, that gives the answer: ``#### 5``, ``Answer: 5``."""
        for match in _LABEL_LINE.finditer(self.flat, last.start, end):
            above = self.flat[self.flat.rfind("\n", 0, match.start()) + 1 : match.start()]
            titled = "\n" not in self.flat[last.end : match.start()] and (last.level > 0 or _introduces(above))
            if above.strip() and not titled and match.start() + 1 not in self.text:
                return match.start() + 1
        return None


def _introduces(lines: str) -> bool:
    """Whether lines are a title, or end with a colon: what they introduce follows."""
    lines = lines.rstrip()
    return lines.endswith((":", ":**", ":__")) or bool(_BOLD_LINE.match(lines))
