"""Steps that open with a number at the start of a line: ``Step 3:``, ``3.``, ``(3)``.

Text before the first marker belongs to the first step, and nested lists to the step around them. A summary or an answer
after the last item is a separate step. Everything here reads `Text.flat`.

The words for "step" and "answer" are known in English, German, French, Spanish, Portuguese and Chinese.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from stepjepa.data.blocks import CharSpan, Paragraph, Text

_STEP = "(?i:step|schritt|étape|etape|paso|passo|etapa|步骤|步驟)"
# After `Step 3`: a title in brackets, the end of markup, then a sign or the end of the line.
_SIGN_AFTER = r"(?=[ \t]*(?:\([^()\n]{1,60}\)[ \t]*)?(?:\*\*|__)?[ \t]*(?:[:.，、)*\u2013\u2014-](?!\d)|\n|\Z))"
# After `3.`: white space, markup, a word without a space before it, or a script without spaces.
_AFTER = r"(?=[\s*_`$\\]|[A-Z][a-z]|[^\x00-\x7f]|\Z)(?!\d)"

# The start of a line. The line feed is part of the pattern (the text is searched with one in front): a literal first
# character makes the search fast.
_MARKER = re.compile(
    rf"""
    \n(?P<lead>[ \t]*)(?=[^\s>A-Za-z]|[SsEePp][a-zA-Z])
    (?P<bullet>[-*+\u2022\u2013\u2014][ \t]+)?
    (?P<heading>\#{{1,6}}[ \t]*)?
    (?:[^\x00-\u218f\w]{{1,6}}[ \t]*)?                           # an emoji
    (?P<bold>\*{{1,3}}|_{{1,3}})?
    (?:
      {_STEP}[ \t]*\(?(?P<step>\d{{1,3}})(?![^\W_])(?!\.\d)(?(heading)|(?(bold)|{_SIGN_AFTER}))
    | 第[ \t]*(?P<ordinal>\d{{1,3}})[ \t]*步
    | (?P<number>\d{{1,3}})(?:\*\*|__)?(?P<stop>[.)、]){_AFTER}
    | \((?P<inside>\d{{1,3}})\)(?=[\s*_`$\\\w]|\Z)
    )
    """,
    re.VERBOSE,
)


# The ranks of markers: the word for "step", a number in a heading, in bold, and a plain one.
_STEP_WORD, _HEADING, _BOLD, _PLAIN = range(4)


class Marker(NamedTuple):
    """The marker that opens a numbered line.

    Attributes:
        start: start of its line.
        end: start of the text after it.
        width: columns of white space before it, four for a tab.
        family: common to the markers of a list: ``step``, or the sign after the number.
        value: the number.
        level: level of the heading, else 0.
        rank: `_STEP_WORD`, `_HEADING`, `_BOLD` or `_PLAIN`.
    """

    start: int
    end: int
    width: int
    family: str
    value: int
    level: int
    rank: int


class Numbered(NamedTuple):
    """The steps of a text, and whether their markers are clear enough to rule out other styles: step words, markers in bold
    or headings, or a list that makes up most of the text."""

    spans: list[CharSpan]
    clear: bool = False


def numbered(text: Text) -> Numbered:
    """Split a text at numbered markers at the start of a line, plain or in bold, in a heading or after a bullet.

    Markers are the word for "step" with a number (``Step 3:``, ``Schritt 3:``, ``第3步``), and numbers that count up:
    ``3.``, ``3)``, ``(3)``, ``３、``. Text before the first marker belongs to the first step, nested items and indented text
    to the step around them. A summary or an answer after the last item, after a blank line and not indented, is a separate
    step. A text with fewer than two markers is one step.
    """
    lists = counted_lists(find_markers(text))
    if not lists:
        return Numbered(text.cut(()))
    cuts: list[int] = []
    # The text that the lists themselves cover.
    regions: list[CharSpan] = []
    for items, later in zip(lists, [*lists[1:], None], strict=True):
        end = later[0].start if later else len(text.flat)
        ending = _ending(text, items, end)
        after = [ending] if later else _tail(text, items[-1], ending)
        cuts += [item.start for item in items[1:]]
        cuts += after
        regions.append((items[0].start, min([*after, end])))
    spans = text.cut(cuts)
    strong = lists[0][0].rank < _PLAIN
    return Numbered(spans, strong or (len(spans) > 1 and _prevail(text, regions)))


def _prevail(text: Text, regions: Sequence[CharSpan]) -> bool:
    """Whether lists dominate the text: at least a third of it is in lists, or at most two paragraphs of prose are not."""
    in_lists = sum(end - start for start, end in regions)
    in_thoughts = sum(end - start for start, end in text.thoughts)
    if 3 * in_lists >= len(text.text) - in_thoughts:
        return True

    def is_in_list(place: int) -> bool:
        return any(start <= place < end for start, end in regions)

    around = [part for part in text.paragraphs if part.prose and not is_in_list(part.start)]
    return len(around) < 3


# Which markers open the steps


def find_markers(text: Text) -> list[Marker]:
    """Return everything that looks like a marker, outside of blocks."""
    markers: list[Marker] = []
    for match in _MARKER.finditer("\n" + text.flat):
        start = match.start()
        word = match["step"] or match["ordinal"]
        # "- 3. a" is an item of a bullet list.
        in_bullet = match["bullet"] and not word and not match["bold"]
        if in_bullet or text.in_block(start):
            continue
        family = "step" if word else match["stop"] or "()"
        value = int(word or match["number"] or match["inside"])
        width = len(match["lead"].expandtabs(4))
        level = (match["heading"] or "").count("#")
        rank = _STEP_WORD if word else _HEADING if level else _BOLD if match["bold"] else _PLAIN
        markers.append(Marker(start, match.end() - 1, width, family, value, level, rank))
    return markers


def counted_lists(markers: Sequence[Marker]) -> list[list[Marker]]:
    """Choose the markers that open the steps of a text, as lists that each count up; [] if there are none.

    Step words take precedence over numbers in headings, these over numbers in bold, and these over plain numbers; among
    numbers of the same kind, the first of the least indented lists wins. All other markers are items inside a step. A single
    marker opens no step.
    """
    families: dict[tuple[int, str, int], list[Marker]] = {}
    for marker in markers:
        # The word for "step" counts at any level and indentation.
        level = 0 if marker.rank == _STEP_WORD else marker.level
        families.setdefault((marker.rank, marker.family, level), []).append(marker)
    outer = [
        family if family[0].rank == _STEP_WORD else _least_indented(family)
        for family in families.values()
    ]
    # An indentation of one column counts as none. The sort is stable: the first of equally indented lists wins.
    outer.sort(key=lambda family: (family[0].rank, max(family[0].width, 1)))
    for family in outer:
        lists = _lists(family)
        # Several step words take precedence even if they do not count up.
        if lists or (family[0].rank == _STEP_WORD and len(family) > 1):
            return lists
    return []


def _least_indented(family: Sequence[Marker]) -> list[Marker]:
    # One column more is not nesting: numbers may be right-aligned, as " 9." and "10." are.
    least = min(marker.width for marker in family)
    return [marker for marker in family if marker.width <= least + 1]


# The deepest nesting that is followed. The bound keeps the search linear in the number of markers.
_NESTED = 8


def _lists(family: Sequence[Marker]) -> list[list[Marker]]:
    """The lists of a family that count up by one; [] if every list has only one item.

    A number that continues an earlier list closes all lists that started since then: they were nested. A number out of
    order is prose that happens to start a line, unless it continues after a gap, or has the word for "step" (a second
    ``Step 2``).
    """
    lists: list[list[Marker]] = []
    last_place = {marker.value: number for number, marker in enumerate(family)}
    for number, marker in enumerate(family):
        waiting = [items[-1].value + 1 for items in lists[-_NESTED:]]
        if marker.value in waiting:
            nested = waiting[::-1].index(marker.value)
            del lists[len(lists) - nested :]
            lists[-1].append(marker)
            continue
        if marker.value <= 1 or not lists:
            lists.append([marker])
            continue
        # The list continues after a gap only if the missing number does not follow later.
        expected = waiting[-1]
        gap = marker.value > expected and last_place.get(expected, -1) < number
        if gap or marker.family == "step":
            lists[-1].append(marker)
    # 1. 1. 1., which Markdown renders as 1. 2. 3.
    if len(family) > 1 and all(marker.value == 1 for marker in family):
        return [list(family)]
    if all(len(items) == 1 for items in lists):
        return []
    return [items for items in lists if len(items) > 1 or items[0].value == 1]


# Where a list ends

# The labels of an answer: a word and a colon or the end of its line, GSM8K's #### 5, or the first words of a conclusion.
_HASHES = r"\#{4,6}[ \t]*(?!\d{1,2}[.)][ \t])[-+$\d(\\]"
_WORD = (
    "(?i:(?:the |our |la |die |a |o )?(?:final answer|answer|conclusion|summary|result|antwort|endergebnis|fazit"
    "|réponse finale|réponse|respuesta final|respuesta|conclusión|resposta final|resposta|conclusão|最终答案|答案|结论|答))"
)
_COLON = r"[ \t]*(?:\*\*|__)?[ \t]*(?:[:：]|(?=\n|\Z))"
_ENDING = (
    r"(?i:in conclusion|to conclude|in summary|to summari[sz]e|putting it all together)(?![^\W_])"
)
_LABEL = re.compile(rf"[#>*_ \t\[(]*(?:{_WORD}{_COLON}|{_ENDING})|{_HASHES}")
_LABEL_LINE = re.compile(rf"\n(?:[*_\# \t]{{0,8}}{_WORD}{_COLON}|{_HASHES})")
# A line that is all bold, or a heading.
_TITLE = re.compile(r"[ \t]*(?:\*\*|__)[^*\n]+(?:\*\*|__)[:.]?[ \t]*|[ \t]*#[^\n]*")


def _ending(text: Text, items: Sequence[Marker], end: int) -> int:
    """The start of the paragraphs after the last item that do not belong to it; `end` if there are none.

    They start with a label or a heading, or where the last item has more paragraphs than any other item.
    """
    usual = max(
        (len(_outer(text, item, later.start)) for item, later in pairwise(items)), default=0
    )
    for number, part in enumerate(_outer(text, items[-1], end)):
        if number >= usual or part.level or _LABEL.match(text.flat, part.start):
            return part.start
    return end


def _outer(text: Text, item: Marker, end: int) -> list[Paragraph]:
    """The paragraphs of an item after its first one that are not indented, and so could be outside of the item."""
    outer: list[Paragraph] = []
    for part in text.between(item.start + 1, end):
        # In an item that is a heading, lower headings are nested, except the heading of an answer.
        nested = 0 < item.level < part.level and not _LABEL.match(text.flat, part.start)
        if part.width <= item.width + 1 and (part.prose or part.level) and not nested:
            outer.append(part)
    return outer


def _tail(text: Text, last: Marker, ending: int) -> list[int]:
    """The starts of the steps after the last item of all lists."""
    cuts = _answer_line(text, last, ending)
    # A paragraph stays with the heading above it, and with a title or a colon that introduces it.
    section = introduced = False
    for part in text.between(ending, len(text.flat)):
        outer = part.width <= last.width + 1 and (part.prose or part.level)
        follows = introduced or (section and not _LABEL.match(text.flat, part.start))
        if outer and (part.level or not follows):
            cuts.append(part.start)
            section = part.level > 0
        introduced = _introduces(text.flat[part.start : part.end])
    return cuts


def _answer_line(text: Text, last: Marker, end: int) -> list[int]:
    """The start of an answer's line at the end of the last item, if no blank line precedes it: ``#### 5``, ``Answer: 5``."""
    for match in _LABEL_LINE.finditer(text.flat, last.end, end):
        above = text.flat[text.flat.rfind("\n", 0, match.start()) + 1 : match.start()]
        if above.strip() and not text.in_block(match.start() + 1):
            return [match.start() + 1]
    return []


def _introduces(lines: str) -> bool:
    """Whether lines are a title or end with a colon, and so introduce the next paragraph."""
    lines = lines.rstrip()
    return lines.endswith((":", ":**", ":__")) or _TITLE.fullmatch(lines) is not None
