"""The step splitters by name, and the one that decides for each text which of the others serves it.

A splitter's `spans` cover a text in order and without overlap, the separator belongs to the step that it ends, and a text
without a boundary is one step. Thinking blocks, code fences, display maths and tables are never cut. Steps are found in the
answer's text, never in token ids, because tokenizers merge ``.\\n\\n`` into one token.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from stepjepa.data.steps.marked import Outline, Source, connected, headed, numbered
from stepjepa.data.steps.plain import compiled_pattern, lines, matched, separated
from stepjepa.data.steps.sentence import sentences
from stepjepa.data.steps.uncut import CharSpan, line_feeds
from stepjepa.errors import ConfigError

SPLITTERS = ("separator", "numbered", "lines")  # those that `choose_splitter` chooses from; of equal ones the first
STYLES = (*SPLITTERS, "connectives", "headings", "sentence", "regex", "auto")  # all that `make_splitter` knows
_SEPARATED = ("separator", "auto", "regex")  # those that read `StepSplitter.separator`

_CLOSING_TAGS = ("</think>", "</thinking>", "[/THINK]")
_INTRODUCTION = re.compile(r"\s*[^\n]*[:：]\s*")
_NEXT_LINE = re.compile(r"\n[ \t]*(?=[^\W\d_])")
_LONG = 40  # characters of a line that may have been wrapped


@dataclass(frozen=True)
class StepSplitter:
    r"""Cuts a text into steps.

    Attributes:
        name: what ``--step_splitter`` calls it, one of `STYLES`.
        separator: for ``separator`` and ``auto``; of ``regex`` the pattern.

    Raises:
        ConfigError: unknown name, an empty separator, or no pattern or a broken one.
    """

    name: str
    separator: str = "\n\n"

    def __post_init__(self) -> None:
        if self.name not in STYLES:
            raise ConfigError(f"step_splitter is {self.name!r}; known splitters: {', '.join(STYLES)}")
        if self.name == "regex":
            compiled_pattern(self.separator)
        elif not self.separator:
            raise ConfigError("step_separator is empty; give the string that stands between two steps")

    def spans(self, text: str) -> list[CharSpan]:
        """Character spans (start, end) that cover `text` in order, without overlap; [] for a blank text.

        Raises:
            ConfigError: the pattern of ``regex`` takes too long for this text.
        """
        match self.name:
            case "separator":
                return separated(text, self.separator)
            case "lines":
                return lines(text)
            case "sentence":
                return sentences(text)
            case "regex":
                return matched(text, self.separator)
            case "auto":
                return style_and_spans(text, self.separator)[1]
        return {"numbered": numbered, "connectives": connected, "headings": headed}[self.name](Source(text)).spans


def make_splitter(name: str, separator: str = "\n\n") -> StepSplitter:
    r"""The splitter called `name`: one of `STYLES`.

    `separator` serves ``separator`` and ``auto``; the two-character escapes ``\n``, ``\r`` and ``\t`` in it (as a shell
    passes them) mean the control characters. For ``regex`` it is the pattern, as it is, and needed.

    Raises:
        ConfigError: as `StepSplitter`.
    """
    if name == "regex":
        return StepSplitter(name, "" if separator in ("\n\n", "\\n\\n") else separator)
    for escape, character in (("\\n", "\n"), ("\\r", "\r"), ("\\t", "\t")):
        separator = separator.replace(escape, character)
    return StepSplitter(name, separator) if name in _SEPARATED else StepSplitter(name)


def choose_splitter(answers: Sequence[tuple[str, int | None]], separator: str = "\n\n") -> str:
    """The splitter that a data set is read with: the one of `SPLITTERS` that serves most answers, ``separator`` if no other
    serves more; ``auto``, which decides for every answer by itself, where none serves two thirds of those with steps.

    A splitter serves an answer of a known number of steps if it finds that number, and ``separator`` is taken at once if no
    other finds it more often. Of the other answers it serves those that `_serving` names.

    Args:
        answers: each with the number of its steps, None where that is not known.
    """
    auto = make_splitter("auto", separator)
    splitters = {name: make_splitter(name, separator) for name in SPLITTERS}
    known = [(text, total) for text, total in answers if total is not None]
    counts = {name: sum(len(one.spans(text)) == total for text, total in known) for name, one in splitters.items()}
    most = max(counts.values())
    if 0 < most == counts["separator"]:
        return "separator"
    served = sum(len(auto.spans(text)) == total for text, total in known)
    # Where no splitter finds any of the numbers, they are none of steps.
    for text, total in answers:
        if total is None or not most:
            serving = _serving(text, auto.separator)
            served += bool(serving)
            for name in serving & counts.keys():
                counts[name] += 1
    best = max(SPLITTERS, key=lambda name: counts[name])
    return "auto" if 3 * counts[best] < 2 * served else best


def _serving(text: str, separator: str) -> set[str]:
    """The styles that find steps in `text`: the one that ``auto`` takes, and ``separator`` also where the text has marks or
    headings and its paragraphs would be steps without them. Empty for a text of one step.
    """
    style, spans = style_and_spans(text, separator)
    found = {style} if len(spans) > 1 else set()
    if style not in ("separator", "lines") and len(_body(text, separated(text, separator))) > 1:
        found.add("separator")
    return found


def style_and_spans(text: str, separator: str = "\n\n") -> tuple[str, list[CharSpan]]:
    r"""The style that serves `text`, and its spans: the first of these.

    - ``separator`` that holds more than line breaks: taken wherever it occurs.
    - ``numbered``: markers that count up at the top level. A few plain numbers among many paragraphs (facts, options) are
      no steps: those are taken where the list is most of the text, or little is around it.
    - ``connectives``: paragraphs that open with *First*, *Next*, *Finally*, and no others between them.
    - ``headings``: two or more sections.
    - ``separator``: two or more paragraphs. Thinking, a line that ends with a colon before all else, and GSM8K's last line
      (``#### 5``) are none where what remains is lines.
    - ``lines``: two or more lines, unless most of them are wrapped in the middle of a sentence.

    A text that none of them cuts is one step, of style ``separator``.
    """
    paragraphs = separated(text, separator)
    if separator.strip() and len(paragraphs) > 1:
        return "separator", paragraphs
    source = Source(text)
    outline = numbered(source)
    if len(outline.spans) > 1 and (outline.strong or _prevails(outline, text)):
        return "numbered", outline.spans
    if len(paragraphs) > 1:
        outline = connected(source)
        if len(outline.spans) > 1 and outline.strong and _prevails(outline, text):
            return "connectives", outline.spans
    if f"\n{text}".count("\n#") > 1 or text.count("**") > 3 or text.count("__") > 3:
        outline = headed(source)
        if len(outline.spans) > 1 and outline.strong:
            return "headings", outline.spans
    body = _body(text, paragraphs)
    # No blank line before the hashes: the data set writes steps on lines.
    if len(body) < 2 or _hashes(text) > body[-1][0]:
        by_line = lines(text)
        if len(by_line) > len(paragraphs) and not _wrapped(text, len(by_line)):
            return "lines", by_line
    return "separator", paragraphs


def _body(text: str, paragraphs: list[CharSpan]) -> list[CharSpan]:
    """The paragraphs that may be steps: without thinking, an introduction, and a last one of hashes."""
    body = paragraphs
    if body and text[slice(*body[0])].rstrip().endswith(_CLOSING_TAGS):
        body = body[1:]
    if len(body) > 1 and _INTRODUCTION.fullmatch(text, *body[0]):
        body = body[1:]
    return body[:-1] if len(body) > 1 and 0 <= _hashes(text) <= body[-1][0] else body


def _prevails(outline: Outline, text: str) -> bool:
    """Whether a list is what the text is about: a third of it, or at most two paragraphs are around it."""
    inside = sum(end - start for start, end in outline.lists)
    return outline.outside < 3 or 3 * inside >= len(text) - outline.thoughts


def _hashes(text: str) -> int:
    """Where GSM8K's last line starts (``#### 5``), -1 without."""
    at = text.rfind("\n####")
    line = text[at + 5 :].strip()
    return at + 1 if at >= 0 and line and not line.startswith("#") and "\n" not in line else -1


def _wrapped(text: str, count: int) -> bool:
    """Whether half of the line ends are in the middle of a sentence: a long line that ends in a word, and a small letter."""
    wraps = 0
    text = line_feeds(text)
    for match in _NEXT_LINE.finditer(text):
        if text[match.end()].islower():
            line = text[max(match.start() - _LONG - 20, 0) : match.start()].rstrip(" \t").rpartition("\n")[2]
            wraps += len(line) >= _LONG and line.rstrip(",")[-1:].isalpha()
    return 2 * wraps >= count - 1
