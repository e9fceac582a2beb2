"""The splitter that decides for each text which of the others serves it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from stepjepa.data.splitters_base import CharSpan, Source, line_feeds
from stepjepa.data.splitters_marked import Outline, connected, headed, numbered
from stepjepa.data.splitters_plain import LineSplitter, SeparatorSplitter
from stepjepa.data.splitters_prose import SentenceSplitter

_CLOSING_TAGS = ("</think>", "</thinking>", "[/THINK]")
_INTRODUCTION = re.compile(r"\s*[^\n]*[:：]\s*")
_NEXT_LINE = re.compile(r"\n[ \t]*(?=[^\W\d_])")
_LONG = 40  # characters of a line that may have been wrapped
_LINES = LineSplitter()


@dataclass(frozen=True)
class AutoSplitter:
    r"""Decides for each text, in this order, and says what it took (`style`).

    - ``numbered``: markers that count up at the top level. A few plain numbers among many paragraphs (facts, options) are
      no steps: those are taken where the list is most of the text, or little stands around it.
    - ``connectives``: paragraphs that open with *First*, *Next*, *Finally*, and no others between them.
    - ``headings``: two or more sections.
    - ``separator``: two or more paragraphs. Thinking, a line that ends with a colon before all else, and GSM8K's last line
      (``#### 5``) are none where what remains is lines.
    - ``lines``: two or more lines, unless most of them are wrapped in the middle of a sentence.
    - ``sentence``: only with `sentences`.

    A text that none of them cuts is one step, of style ``separator``.

    Attributes:
        separator: of ``separator``. One that holds more than line breaks is taken wherever it occurs.
        sentences: whether a single paragraph is cut into its sentences.
    """

    name: ClassVar[str] = "auto"
    separator: str = "\n\n"
    sentences: bool = False

    def style(self, text: str) -> str:
        """The name of the splitter that serves `text`."""
        return self.decide(text)[0]

    def spans(self, text: str) -> list[CharSpan]:
        """See `StepSplitter.spans`."""
        return self.decide(text)[1]

    def decide(self, text: str) -> tuple[str, list[CharSpan]]:
        """`style` and `spans` at once."""
        paragraphs = SeparatorSplitter(self.separator).spans(text)
        if self.separator.strip() and len(paragraphs) > 1:
            return "separator", paragraphs
        return self._marked(text, len(paragraphs)) or self._plain(text, paragraphs)

    def serving(self, text: str) -> set[str]:
        """The styles that find steps in `text`: the one that is taken, and ``separator`` also where the text has marks or
        headings and its paragraphs would be steps without them. Empty for a text of one step.
        """
        style, spans = self.decide(text)
        found = {style} if len(spans) > 1 else set()
        if style not in ("separator", "lines", "sentence"):
            body = self._body(text, SeparatorSplitter(self.separator).spans(text))
            found |= {"separator"} if len(body) > 1 else set()
        return found

    def _marked(self, text: str, paragraphs: int) -> tuple[str, list[CharSpan]] | None:
        """Style and spans of a text with markers or headings, None for one without."""
        source = Source(text)
        outline = numbered(source)
        if len(outline.spans) > 1 and (outline.strong or _prevails(outline, text)):
            return "numbered", outline.spans
        if paragraphs > 1:
            outline = connected(source)
            if len(outline.spans) > 1 and outline.strong and _prevails(outline, text):
                return "connectives", outline.spans
        if f"\n{text}".count("\n#") > 1 or text.count("**") > 3 or text.count("__") > 3:
            outline = headed(source)
            if len(outline.spans) > 1 and outline.strong:
                return "headings", outline.spans
        return None

    def _body(self, text: str, paragraphs: list[CharSpan]) -> list[CharSpan]:
        """The paragraphs that may be steps: without thinking, an introduction, and a last one of hashes."""
        body = paragraphs
        if body and text[slice(*body[0])].rstrip().endswith(_CLOSING_TAGS):
            body = body[1:]
        if len(body) > 1 and _INTRODUCTION.fullmatch(text, *body[0]):
            body = body[1:]
        return body[:-1] if len(body) > 1 and 0 <= _hashes(text) <= body[-1][0] else body

    def _plain(self, text: str, paragraphs: list[CharSpan]) -> tuple[str, list[CharSpan]]:
        """Style and spans of a text by its paragraphs, lines or sentences."""
        body = self._body(text, paragraphs)
        # No blank line before the hashes: the data set writes steps on lines.
        by_line = bool(body) and _hashes(text) > body[-1][0]
        if len(body) < 2 or by_line:
            lines = _LINES.spans(text)
            if len(lines) > len(paragraphs) and not _wrapped(text, len(lines)):
                return "lines", lines
        if self.sentences and len(body) < 2:
            sentences = SentenceSplitter().spans(text)
            if len(sentences) > len(paragraphs):
                return "sentence", sentences
        return "separator", paragraphs


def _prevails(outline: Outline, text: str) -> bool:
    """Whether a list is what the text is about: a third of it, or at most two paragraphs stand around it."""
    inside = sum(end - start for start, end in outline.lists)
    return outline.outside < 3 or 3 * inside >= len(text) - outline.thoughts


def _hashes(text: str) -> int:
    """Where GSM8K's last line starts (``#### 5``), -1 without."""
    at = text.rfind("\n####")
    line = text[at + 5 :].strip()
    return at + 1 if at >= 0 and line and not line.startswith("#") and "\n" not in line else -1


def _wrapped(text: str, lines: int) -> bool:
    """Whether half of the line ends are in the middle of a sentence: a long line that ends in a word, and a small letter."""
    wraps = 0
    text = line_feeds(text)
    for match in _NEXT_LINE.finditer(text):
        if text[match.end()].islower():
            line = text[max(match.start() - _LONG - 20, 0) : match.start()].rstrip(" \t").rpartition("\n")[2]
            wraps += len(line) >= _LONG and line.rstrip(",")[-1:].isalpha()
    return 2 * wraps >= lines - 1
