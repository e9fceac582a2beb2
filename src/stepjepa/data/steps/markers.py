"""Numbered markers at the start of lines: ``Step 3:``, ``3.``, ``(c)``, ``IV.``, ``第三步``, and which of them count.

`find_markers` reads the lines, `counted_lists` picks the markers that open the steps: those of one kind that count up,
at the top level. Everything here works on `Text.flat`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from stepjepa.data.steps.text import Text
from stepjepa.data.steps.words import WORDS, either, first_letters

_CJK = "一二三四五六七八九十"
_ROMAN = [tens + ones for tens in ("", "x", "xx") for ones in " i ii iii iv v vi vii viii ix".split(" ")][1:] + ["xxx"]
_ROMAN_VALUES = {numeral: value for value, numeral in enumerate(_ROMAN, start=1)}

_NUMERAL = rf"\d{{1,3}}|[{_CJK}]{{1,3}}|(?<=[ \t(#])(?:[IVX]{{1,5}}|[A-Z]|(?i:{either('number')}))"
_STEP_LETTERS = first_letters(WORDS["step"] + WORDS["ordinal"])
_STEP = rf"(?=[^\W\d_])(?i:{either('step')})"
# Behind `Step 3`: a title in brackets, the end of markup, then a sign or the end of the line.
_SIGN_BEHIND = (
    r"(?=[ \t]*(?:\([^()\n]{1,60}\)[ \t]*)?(?:\*\*|__|</b>|[}\])])*[ \t]*"
    r"(?:[:.，、)\]*}\u2013\u2014-](?!\d)|\n|\Z))"
)
# Behind `3.`: white space, markup, a word without a space in between, a script that writes no spaces.
_BEHIND = r"(?=[\s*_`$\\]|[A-Z][a-z]|[^\x00-\x7f]|\Z)(?!\d)"

_EMOJI = "[\u2190-\u23ff\u2500-\u2775\u2780-\u2bff\ufe0f\u200d\U0001f000-\U0001faff]"

# One line's start. The line feed is part of it (a text is searched with one in front), which makes the search fast.
_MARKER = re.compile(
    rf"""
    \n(?P<lead>[ \t>]*)(?=[^\s>A-Za-z]|[A-Za-z][^A-Za-z]|[ivxIVX]{{2,5}}[.)]|{_STEP_LETTERS})
    (?![A-Za-z]{{2,}}[ ][a-z]{{2,}}[ ][^:(\u2013\u2014-])  # two words: prose, most often
    (?P<bullet>[-*+\u2022\u2013\u2014][ \t]+)?
    (?P<heading>\#{{1,6}}[ \t]*)?
    (?:{_EMOJI}{{1,6}}[ \t]*)?
    (?P<bold>\*{{1,3}}|_{{1,3}}|\\textbf\{{|<(?:b|strong)>)?
    (?:
      (?P<step>
        [(\[]?{_STEP}[ \t]*(?:[\#№-][ \t]*)?\(?(?:{_NUMERAL})(?:[ \t]*(?:/|of|von|de|sur|из)[ \t]*\d+)?
          (?![^\W_])(?!\.\d)(?(heading)|(?(bold)|{_SIGN_BEHIND}))
      | 第[ \t]*(?:\d{{1,3}}|[{_CJK}]{{1,3}})[ \t]*(?:步|ステップ|단계|段階)
      | [(\[]?(?:\d{{1,3}}(?:[.)ºª°]|-?[^\W\d_]{{1,3}})?[ \t]*|(?i:{either("ordinal")})[ \t]+){_STEP}(?![^\W_])
          {_SIGN_BEHIND}
      )
    | (?P<number>\d{{1,3}})(?:(?:\*\*|__)?(?:\\?(?P<stop>[.)]){_BEHIND}|(?P<comma>、)(?!\d))|(?P<keycap>\ufe0f?\u20e3))
    | [(\[](?P<inside>\d{{1,3}}|[ivx]{{1,5}}|[IVX]{{1,5}}|[A-Za-z]|[{_CJK}]{{1,3}})(?P<closed>[)\]])(?=[\s*_`$\\\w]|\Z)
    | (?P<circled>[\u2460-\u2473])
    | (?P<letters>[ivx]{{1,5}}|[IVX]{{1,5}}|[A-Za-z])(?:\*\*|__)?(?P<dot>[.)])(?=[\s*_])
    | (?P<cjk>[{_CJK}]{{1,3}})(?P<cjkdot>[、.])
    )
    """,
    re.VERBOSE,
)


class Marker(NamedTuple):
    """What opens a numbered line.

    Attributes:
        start: where its line starts.
        width: columns of white space before it, four for a tab.
        quoted: whether a quote's sign stands before it.
        family: markers of one list share it: ``step``, or how the number is written.
        value: the number; None where it is not known (``Last step:``).
        strength: 3 with a heading's sign, 2 in bold, 1 else.
        level: of the heading; 0 without.
        end: where what it marks begins.
    """

    start: int
    width: int = 0
    quoted: bool = False
    family: str = "word"
    value: int | None = None
    strength: int = 1
    level: int = 0
    end: int = 0


def find_markers(text: Text) -> list[Marker]:
    """All that looks like a marker, outside of what is never cut; a letter that may be a Roman number comes twice."""
    found: list[Marker] = []
    for match in _MARKER.finditer("\n" + text.flat):
        start = match.start()
        if start in text:
            continue
        lead, bullet, heading, bold, step = match.group("lead", "bullet", "heading", "bold", "step")
        if bullet and step is None and not bold:
            continue  # "- 3. a" is an item of a list, whatever stands in it
        width = len(lead.replace(">", " ").expandtabs(4))
        level, strength = heading.count("#") if heading else 0, 3 if heading else 2 if bold else 1
        for family, value in _readings(match):
            found.append(Marker(start, width, ">" in lead, family, value, strength, level, match.end() - 1))
    return found


def _readings(match: re.Match[str]) -> Iterable[tuple[str, int | None]]:
    """Family and value; two of them for a letter that is a Roman number as well."""
    number, stop, step, circled, cjk = match.group("number", "stop", "step", "circled", "cjk")
    if number is not None:
        yield "1" + (stop or match["comma"] or "keycap"), int(number)
    elif step is not None:
        yield "step", _step_value(step)
    elif circled is not None:
        yield "1circled", ord(circled) - 0x245F
    elif cjk is not None:
        yield "1cjk" + match["cjkdot"], _cjk_value(cjk)
    else:
        inside = match["inside"]
        shape = match["dot"] if inside is None else "(" + match["closed"]
        numeral = match["letters"] if inside is None else inside
        if numeral[0].isdigit():
            yield "1" + shape, int(numeral)
        elif numeral[0] in _CJK:
            yield "1cjk" + shape, _cjk_value(numeral)
        else:
            case = "A" if numeral.isupper() else "a"
            if numeral.lower() in _ROMAN_VALUES:
                yield case + "roman" + shape, _ROMAN_VALUES[numeral.lower()]
            if len(numeral) == 1:
                yield case + shape, ord(numeral.lower()) - ord("a") + 1


def _step_value(step: str) -> int | None:
    digits = re.search(r"\d+", step)
    if digits:
        return int(digits[0])
    numeral = re.findall(r"[^\W\d_]+", step)[-1].lower()
    if numeral in WORDS["number"]:
        return WORDS["number"].index(numeral) + 1
    if numeral in _ROMAN_VALUES:
        return _ROMAN_VALUES[numeral]
    numerals = re.search(f"[{_CJK}]+", step)
    if numerals:
        return _cjk_value(numerals[0])
    return ord(numeral) - ord("a") + 1 if len(numeral) == 1 and numeral.isascii() else None


def _cjk_value(numeral: str) -> int:
    """一 is 1, 十二 is 12, 三十 is 30."""
    tens, ten, ones = numeral.rpartition("十")
    value = _CJK.index(ones[-1]) + 1 if ones else 0
    return value + (10 * (_CJK.index(tens[-1]) + 1 if tens else 1) if ten else 0)


def counted_lists(text: str, markers: Sequence[Marker]) -> list[list[Marker]]:
    """The markers that open the steps of `text`, as lists that each count up; [] where there are none.

    Step words beat numbers in headings, these beat numbers in bold, and these plain ones; among plain ones the least
    indented that come first and count up. Others are items of a step. A single marker opens nothing.
    """
    if any(marker.quoted for marker in markers) and not _all_quoted(text):
        markers = [marker for marker in markers if not marker.quoted]
    steps = [marker for marker in markers if marker.family == "step"]
    if steps and (len(steps) > 1 or steps[0].start == markers[0].start):
        return _step_lists(steps) if len(steps) > 1 else []
    for strength in (3, 2, 1):
        families: dict[tuple[str, int], list[Marker]] = {}
        for marker in markers:
            if marker.strength == strength and marker.family != "step":
                families.setdefault((marker.family, marker.level), []).append(marker)
        widths = {name: min(marker.width for marker in family) for name, family in families.items()}
        for name in sorted(
            families, key=lambda name: max(widths[name], 1)
        ):  # one column is none; of equal ones the first
            family, least = families[name], widths[name]
            lists = _lists([marker for marker in family if marker.width <= least + 1])
            if lists and not (strength == 1 and _equations(text, lists)):
                return lists
    return []


def _equations(text: str, lists: list[list[Marker]]) -> bool:
    """Whether numbers in brackets are labels: nothing but equations stands after them, and the text refers to them."""
    markers = [marker for items in lists for marker in items]
    if "(" not in markers[0].family:
        return False
    for marker in markers:
        line = text[marker.end :].partition("\n")[0]
        if "=" not in line or len(re.findall(r"[^\W\d_]{3,}", line)) > 1:
            return False
    return re.search(r"\(\d{1,3}\)", text[max(marker.end for marker in markers) :]) is not None


def _all_quoted(text: str) -> bool:
    return all(line.lstrip().startswith(">") for line in text.split("\n") if line.strip())


def _step_lists(steps: list[Marker]) -> list[list[Marker]]:
    """Step words: where some are headings or bold and count up, plain ones are inside their steps."""
    for strength in (3, 2):
        strong = [marker for marker in steps if marker.strength == strength]
        values = [marker.value for marker in strong]
        up = all(b == 1 or (a is not None and b == a + 1) for a, b in pairwise(values))
        if len(strong) > 1 and up:
            steps = strong
            break
    lists: list[list[Marker]] = []
    for marker in steps:
        if lists and (marker.value is None or marker.value > 1):
            lists[-1].append(marker)
        else:
            lists.append([marker])
    return lists


def _lists(family: list[Marker]) -> list[list[Marker]]:
    """The lists of one family that count up by one.

    A number that goes on with an earlier list closes the lists that have begun since: they were nested. A number out of
    order is prose that happens to start a line, unless it goes on after a gap.
    """
    last_of = {marker.value: number for number, marker in enumerate(family)}
    digits = family[0].family.startswith("1")
    stack: list[list[Marker]] = []
    expected: dict[int, list[int]] = {}  # next value -> places in the stack of lists that wait for it
    for number, marker in enumerate(family):
        value = marker.value or 0
        places = expected.get(value, [])
        while places and (places[-1] >= len(stack) or (stack[places[-1]][-1].value or 0) + 1 != value):
            places.pop()
        if places:
            del stack[places.pop() + 1 :]
            stack[-1].append(marker)
        elif value <= 1 or not stack:
            stack.append([marker])
        else:
            before = stack[-1][-1].value or 0
            if not digits or value <= before or last_of.get(before + 1, -1) >= number:  # no gap
                continue
            stack[-1].append(marker)
        expected.setdefault(value + 1, []).append(len(stack) - 1)
    if len(stack) > 1 and all(len(items) == 1 and items[0].value == 1 for items in stack):
        return [[items[0] for items in stack]] if digits else []  # 1. 1. 1., which Markdown counts up
    if not any(len(items) > 1 and (digits or (items[0].value or 0) == 1) for items in stack):
        return []
    return [items for items in stack if len(items) > 1 or items[0].value == 1]
