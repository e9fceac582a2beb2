"""Steps that open with a number, and where the last of them ends.

`find_markers` reads numbered lines (``Step 3:``, ``3.``, ``(3)``, ``第三步``), `counted_lists` picks those that open the
steps: of one kind that count up, at the top level. What precedes the first mark belongs to the first step, and what is
nested to its step. A paragraph after the last item that is not indented (a summary, the final answer) is a step of its own,
unless the other items have such paragraphs too and it is not labelled as an answer. All this reads `Text.flat`.

The word for step, and the words that label an answer or open a conclusion, are known in English, German, French, Spanish,
Portuguese and Chinese.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from stepjepa.data.steps.text import CharSpan, Paragraph, Text

_CJK = "一二三四五六七八九十"  # of 第三步
_STEP = "(?i:step|schritt|étape|etape|paso|passo|etapa|步骤|步驟)"
# After `Step 3`: a title in brackets, the end of markup, then a sign or the end of the line.
_SIGN_AFTER = (
    r"(?=[ \t]*(?:\([^()\n]{1,60}\)[ \t]*)?(?:\*\*|__|</b>|[}\])])*[ \t]*"
    r"(?:[:.，、)\]*}\u2013\u2014-](?!\d)|\n|\Z))"
)
# After `3.`: white space, markup, a word without a space in between, a script that writes no spaces.
_AFTER = r"(?=[\s*_`$\\]|[A-Z][a-z]|[^\x00-\x7f]|\Z)(?!\d)"
_EMOJI = "[\u2190-\u23ff\u2500-\u2775\u2780-\u2bff\ufe0f\u200d\U0001f000-\U0001faff]"

# One line's start. The line feed is part of it (a text is searched with one in front), which makes the search fast.
_MARKER = re.compile(
    rf"""
    \n(?P<lead>[ \t>]*)(?=[^\s>A-Za-z]|[SsEePp][a-zA-Z])
    (?P<bullet>[-*+\u2022\u2013\u2014][ \t]+)?
    (?P<heading>\#{{1,6}}[ \t]*)?
    (?:{_EMOJI}{{1,6}}[ \t]*)?
    (?P<bold>\*{{1,3}}|_{{1,3}}|\\textbf\{{|<(?:b|strong)>)?
    (?:
      (?P<step>
        [(\[]?{_STEP}[ \t]*(?:[\#№-][ \t]*)?\(?\d{{1,3}}(?:[ \t]*(?:/|of|von|de|sur)[ \t]*\d+)?
          (?![^\W_])(?!\.\d)(?(heading)|(?(bold)|{_SIGN_AFTER}))
      | 第[ \t]*(?:\d{{1,3}}|[{_CJK}])[ \t]*步
      )
    | (?P<number>\d{{1,3}})(?:\*\*|__)?(?:\\?(?P<stop>[.)]){_AFTER}|(?P<comma>、)(?!\d))
    | [(\[](?P<inside>\d{{1,3}})(?P<closed>[)\]])(?=[\s*_`$\\\w]|\Z)
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
        value: the number.
        strength: 3 with a heading's sign, 2 in bold, 1 else.
        level: of the heading; 0 without.
        end: where what it marks begins.
    """

    start: int
    width: int
    quoted: bool
    family: str
    value: int
    strength: int
    level: int
    end: int


def find_markers(text: Text) -> list[Marker]:
    """All that looks like a marker, outside of what is never cut."""
    markers: list[Marker] = []
    for match in _MARKER.finditer("\n" + text.flat):
        start = match.start()
        if start in text:
            continue
        lead, bullet, heading, bold, step = match.group("lead", "bullet", "heading", "bold", "step")
        if bullet and step is None and not bold:
            continue  # "- 3. a" is an item of a list, whatever it holds
        width = len(lead.replace(">", " ").expandtabs(4))
        level = heading.count("#") if heading else 0
        strength = 3 if heading else 2 if bold else 1
        family, value = _reading(match)
        markers.append(Marker(start, width, ">" in lead, family, value, strength, level, match.end() - 1))
    return markers


def _reading(match: re.Match[str]) -> tuple[str, int]:
    """How the number is written, and the number."""
    number, stop, comma, inside, closed = match.group("number", "stop", "comma", "inside", "closed")
    if number is not None:
        return stop or comma, int(number)
    if inside is not None:
        return "(" + closed, int(inside)
    digits = re.search(r"\d+", match["step"])
    if digits is not None:
        return "step", int(digits[0])
    return "step", _CJK.index(match["step"].rstrip("步 \t")[-1]) + 1


def counted_lists(text: str, markers: Sequence[Marker]) -> list[list[Marker]]:
    """The markers that open the steps of `text`, as lists that each count up; [] where there are none.

    Step words beat numbers in headings, these beat numbers in bold, and these plain ones; among plain ones the least
    indented that come first and count up. Others are items of a step. A single marker opens nothing.
    """
    if any(marker.quoted for marker in markers) and any(
        line.lstrip()[:1] not in ("", ">") for line in text.split("\n")
    ):
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
        # One column is none; of equal ones the first.
        for name in sorted(families, key=lambda name: max(widths[name], 1)):
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


def _step_lists(steps: list[Marker]) -> list[list[Marker]]:
    """Step words: where some are headings or bold and count up, plain ones are inside their steps."""
    for strength in (3, 2):
        strong = [marker for marker in steps if marker.strength == strength]
        values = [marker.value for marker in strong]
        up = all(b in (1, a + 1) for a, b in pairwise(values))
        if len(strong) > 1 and up:
            steps = strong
            break
    lists: list[list[Marker]] = []
    for marker in steps:
        if lists and marker.value > 1:
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
    stack: list[list[Marker]] = []
    expected: dict[int, list[int]] = {}  # next value -> places in the stack of lists that wait for it
    for number, marker in enumerate(family):
        value = marker.value
        places = expected.get(value, [])
        while places and (places[-1] >= len(stack) or stack[places[-1]][-1].value + 1 != value):
            places.pop()
        if places:
            del stack[places.pop() + 1 :]
            stack[-1].append(marker)
        elif value <= 1 or not stack:
            stack.append([marker])
        else:
            before = stack[-1][-1].value
            if value <= before or last_of.get(before + 1, -1) >= number:  # no gap
                continue
            stack[-1].append(marker)
        expected.setdefault(value + 1, []).append(len(stack) - 1)
    if len(stack) > 1 and all(len(items) == 1 and items[0].value == 1 for items in stack):
        return [[items[0] for items in stack]]  # 1. 1. 1., which Markdown counts up
    if not any(len(items) > 1 for items in stack):
        return []
    return [items for items in stack if len(items) > 1 or items[0].value == 1]


# Steps

# What labels an answer: a word and a colon, GSM8K's #### 5, words of an ending.
_HASHES = r"\#{4,6}[ \t]*(?!\d{1,2}[.)][ \t])[-+$\d(\\]"
_WORD = (
    "(?i:(?:the |our |la |die |a |o )?(?:final answer|answer|conclusion|summary|result|antwort|endergebnis|fazit"
    "|réponse finale|réponse|respuesta final|respuesta|conclusión|resposta final|resposta|conclusão|最终答案|答案|结论|答))"
)
_COLON = r"[ \t]*(?:\*\*|__)?[ \t]*(?:[:：]|(?:\*\*|__)[ \t]*(?=\n|\Z))"
_ENDING = r"(?i:in conclusion|to conclude|in summary|to summari[sz]e|putting it all together)(?![^\W_])"
_LABEL = re.compile(rf"(?:[#>*_ \t\[(]|\\textbf\{{)*(?:{_WORD}{_COLON}|{_ENDING})|{_HASHES}")
_ANSWER = re.compile(rf"[#>*_ \t\[(]*(?:{_WORD}|{_ENDING})(?![^\W_])|{_HASHES}|\$*\s*\\boxed")
_ANSWER_INSIDE = re.compile(r"\banswer\b[^\n.]{0,40}\bis\b|\\boxed")
_SO = re.compile(
    r"[#>*_ \t\[(]*(?:(?i:therefore|thus|hence|so|consequently|accordingly|as a result|altogether|overall|in total|finally"
    r"|daher|somit|folglich|insgesamt|donc|ainsi|par conséquent|por tanto|por lo tanto|así|portanto|logo|assim)(?![^\W_])"
    r"|∴|因此|所以|综上|故)"
)
_LABEL_ALONE = re.compile(rf"[#*_ \t]*{_WORD}[ \t*_:：]*(?=\n|\Z)")
_LABEL_LINE = re.compile(rf"\n(?:[*_\# \t]{{0,8}}{_WORD}{_COLON}|{_HASHES})")
_BOLD_LINE = re.compile(r"[ \t]*(?:\*\*|__)[^*\n]+(?:\*\*|__)[:.]?[ \t]*\Z")


class Marked(NamedTuple):
    """The steps of a text, and whether their marks are so clear that it is not read in another way: step words, marks in
    bold or headings, a list that most of the text is."""

    spans: list[CharSpan]
    clear: bool = False


def numbered(text: Text) -> Marked:
    """Steps open with a numbered marker at the start of a line, alone or in bold, in a heading or after a bullet.

    Markers are the word for step with a number (``Step 3:``, ``Schritt 3:``, ``第三步``), and numbers that count up: ``3.``,
    ``3)``, ``(3)``, ``３、``. What precedes the first marker belongs to the first step, nested items and what is indented to
    their step. A summary or an answer after the last item, after a blank line and not indented, is a step of its own. A
    text with fewer than two markers is one step.
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
    prose = [part.start for part in text.paragraphs if part.kind == "prose"]
    around = [start for start in prose if not any(begin <= start < end for begin, end in regions)]
    return 3 * inside >= len(text.text) - thoughts or len(around) < 3


class _Lists:
    """Finds where the items of a text's lists begin, and where each list ends."""

    def __init__(self, text: Text):
        self.text, self.flat = text, text.flat
        self._starts = [paragraph.start for paragraph in self.text.paragraphs]

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

    def counted(self, marker: Marker, end: int) -> list[Paragraph]:
        """The paragraphs of an item, after its first one, that are not indented and could be outside of it."""
        found = []
        for part in self._within(marker.start + 1, end):
            # Headings below one that is a marker are its own, but for that of an answer.
            own = 0 < marker.level < part.level and not _LABEL_ALONE.match(self.flat, part.start)
            if part.width <= marker.width + 1 and part.kind in ("prose", "heading") and not own:
                found.append(part)
        return found

    def _within(self, start: int, end: int) -> list[Paragraph]:
        first = bisect_left(self._starts, start)
        return self.text.paragraphs[first : bisect_left(self._starts, end, first)]

    def _ending(self, items: list[Marker], end: int) -> list[Paragraph]:
        """The paragraphs after the last item that do not belong to it."""
        parts = self._after_title(items[-1], end)
        if not parts:
            return []
        counts = [len(self._after_title(left, right.start)) for left, right in pairwise(items)]
        least = min(counts, default=0)
        usual = max(counts, default=0) == least and (least == 0 or (len(counts) > 1 and not items[0].level))
        for number, part in enumerate(parts):
            concludes = self._answers(part) or (part is parts[-1] and _SO.match(self.flat, part.start))
            labelled = part.kind == "heading" or _LABEL.match(self.flat, part.start)
            if labelled or (number >= least and (usual or concludes)):
                return parts[number:]
        return []

    def _answers(self, part: Paragraph) -> bool:
        return bool(_ANSWER.match(self.flat, part.start) or _ANSWER_INSIDE.search(self.flat, part.start, part.end))

    def _after_title(self, marker: Marker, end: int) -> list[Paragraph]:
        """`counted` without the paragraph that a title, or words with a colon, introduce right before it."""
        parts = self.counted(marker, end)
        if parts and parts[0].kind == "prose" and parts[:1] == self._within(marker.start + 1, end)[:1]:
            title = self.flat[marker.start : parts[0].start].strip()
            if _introduces(title) or (marker.level and "\n" not in title):
                return parts[1:]
        return parts

    def _between(self, last: Marker, opened: int, ending: list[Paragraph]) -> list[int]:
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

    def _tail(self, last: Marker, ending: list[Paragraph]) -> list[int]:
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
