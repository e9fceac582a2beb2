"""Steps that open with a mark: a number, a word such as *First* and *Then*, a heading."""

from __future__ import annotations

import re
from typing import NamedTuple

from stepjepa.data.steps.items import Itemizer, labelled_answer
from stepjepa.data.steps.markers import Marker, counted_lists, find_markers
from stepjepa.data.steps.uncut import CharSpan, Uncut, flat, spans_from_cuts
from stepjepa.data.steps.words import WORDS, either

_COMMA = "[,:，、：]"


def _unspaced(use: str) -> str:
    return "|".join(word.replace("*", _COMMA) for word in WORDS[use])


# Behind a connective: a comma or a colon, or the sentence goes on with a small letter ("First we add").
_CONNECTIVE = re.compile(
    r"\n(?P<lead>[ \t]*)(?P<bold>\*{1,3}|__)?(?=[^\W\d_])(?:"
    rf"(?:(?P<first>(?i:{either('first')}))|(?i:{either('next')}|{either('last')}))(?![\w'’-])"
    rf"(?=(?:\*{{1,3}}|__)?[ \t]*{_COMMA}|[ \t]+[^\W\d_A-Z])"
    rf"|(?P<cjk>{_unspaced('unspaced')})|{_unspaced('unspaced next')})"
)
_HEADING = re.compile(
    r"\n(?:(?P<hashes>#{1,6})(?:[ \t]+(?=\S)(?![-+$]?\d+[ \t]*(?:\n|\Z))|(?=[^\W\d_]))"
    r"|(?P<bold>(?:\*\*|__)(?=\S)[^*\n]{1,100}(?:\*\*|__):?[ \t]*(?=\n|\Z)))"
)
_BLANK_BEHIND = re.compile(r"[ \t]*\n[ \t]*(?:\n|\Z)")


class Source:
    """A text with what every search for marks needs of it: `text` itself, `flat` and `uncut`."""

    def __init__(self, text: str):
        self.text, self.flat, self.uncut = text, flat(text), Uncut(text)


class Outline(NamedTuple):
    """The steps of a text as one of the functions here finds them.

    Attributes:
        spans: the steps.
        lists: the stretches of the lists themselves, without what stands around them; [] where nothing was found.
        strong: the markers are clear ones: no plain numbers; connectives that open every paragraph or every line; headings
            with hashes or bold lines that mostly are paragraphs of their own.
        outside: paragraphs of prose around the lists.
        thoughts: characters in thinking blocks.
    """

    spans: list[CharSpan]
    lists: list[CharSpan]
    strong: bool = False
    outside: int = 0
    thoughts: int = 0


def numbered(source: Source) -> Outline:
    """Steps open with a numbered marker at the start of a line, alone or in bold, in a heading or after a bullet.

    Markers are step words with a number (``Step 3:``, ``Schritt 3:``, ``第三步``), and numbers, Roman numbers and letters
    that count up: ``3.``, ``3)``, ``(3)``, ``III.``, ``c)``, ``３、``, ``③``. What precedes the first marker belongs to the
    first step, nested items and what is indented to their step. A summary or an answer after the last item, after a blank
    line and not indented, is a step of its own. A text with fewer than two markers is one step.
    """
    markers = find_markers(source.flat, source.uncut)
    lists = counted_lists(source.flat, markers) if len(markers) > 1 else []
    if not lists:
        return _nothing(source)
    strong = lists[0][0].family == "step" or lists[0][0].strength > 1
    return _outline(source, Itemizer(source.flat, source.uncut), lists, strong)


def connected(source: Source) -> Outline:
    """Steps open with a word such as *First*, *Next*, *Then* or *Finally*, in many languages, at the start of a paragraph
    (of a line, where no two paragraphs do). Everything else is as in `numbered`.
    """
    text = source.flat
    markers = []
    for match in _CONNECTIVE.finditer("\n" + text):
        if match.start() not in source.uncut:
            first = match["first"] is not None or match["cjk"] is not None
            markers.append(Marker(match.start(), 0, False, "then", 1 if first else None, 1, 0, match.end() - 1))
    opening = len(text) - len(text.lstrip())
    paragraphs = [marker for marker in markers if marker.start <= opening or _after_blank(text, marker.start)]
    strong = len(paragraphs) > 1
    if strong:  # others are lines that happen to wrap there
        markers = paragraphs
    if len(markers) < 2 or (markers[0].value != 1 and len(markers) < 3):
        return _nothing(source)
    itemizer = Itemizer(text, source.uncut)
    lines = text[markers[0].start : markers[-1].start].split("\n")
    strong = strong or sum(not line.isspace() and line != "" for line in lines) < len(markers)
    return _outline(source, itemizer, [markers], strong and itemizer.without_prose(markers))


def headed(source: Source) -> Outline:
    """Steps are the sections under the headings of the highest level that occurs twice, else under bold lines. What precedes
    the first heading belongs to the first step; a labelled answer at the end of the last section is one of its own.
    """
    levels: dict[int, list[int]] = {}
    alone = 0  # bold lines with a blank line behind
    for match in _HEADING.finditer("\n" + source.flat):
        start = match.start()
        if start not in source.uncut and (match["hashes"] or start == 0 or _after_blank(source.flat, start)):
            levels.setdefault(len(match["hashes"] or "1234567"), []).append(start)
            alone += match["bold"] is not None and bool(_BLANK_BEHIND.match(source.flat, match.end() - 1))
    level = min((level for level in levels if len(levels[level]) > 1), default=0)
    starts = levels.get(level, [])
    if not starts:
        return _nothing(source)
    answer = labelled_answer(source.flat, source.uncut, starts[-1])
    spans = spans_from_cuts(source.text, [*starts[1:], *answer], source.uncut)
    return Outline(spans, [(starts[0], len(source.text))], level < 7 or 2 * alone > len(starts))


def _nothing(source: Source) -> Outline:
    return Outline(spans_from_cuts(source.text, (), source.uncut), [])


def _outline(source: Source, itemizer: Itemizer, lists: list[list[Marker]], strong: bool) -> Outline:
    steps = itemizer.steps(lists)
    spans = spans_from_cuts(source.text, steps.cuts, source.uncut)
    thoughts = sum(end - start for start, end in source.uncut.thoughts)
    return Outline(spans, steps.lists, strong, itemizer.outside(steps.lists), thoughts)


def _after_blank(text: str, start: int) -> bool:
    """Whether the line before the one at `start` is blank."""
    return start > 1 and not text[text.rfind("\n", 0, start - 1) + 1 : start].strip()
