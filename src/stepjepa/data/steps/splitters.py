"""The step splitters by name, and the one that serves a text or a data set."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import regex

from stepjepa.config.gone import replacement
from stepjepa.config.option import Names
from stepjepa.data.options import StepsOptions
from stepjepa.data.steps.numbered import numbered
from stepjepa.data.steps.sentences import sentences
from stepjepa.data.steps.text import CharSpan, Text, text_of
from stepjepa.errors import ConfigError

SPLITTERS = ("separator", "numbered", "lines")  # those that `choose_splitter` chooses from; of equal ones the first
STYLES = (*SPLITTERS, "sentence", "regex", "auto")  # all that `make_splitter` knows
PATTERN_SECONDS = 2.0  # that a pattern may take for one answer
_NAME = Names(StepsOptions)
_BLANK_LINE = "\n\n"
_INTRODUCTION = re.compile(r"\s*[^\n]*[:：]\s*")
_HASHES = re.compile(r"^####[ \t]*(?!#)\S[^\n]*\s*\Z", re.MULTILINE)  # GSM8K's last line
_LONG = 40  # characters of a line that may have been wrapped


@dataclass(frozen=True)
class StepSplitter:
    """Cuts a text into steps in one of the `STYLES`; `separator` is the pattern of ``regex``.

    Raises:
        ConfigError: unknown name, an empty separator, or no pattern or a broken one.
    """

    name: str
    separator: str = _BLANK_LINE

    def __post_init__(self) -> None:
        gone = replacement(_NAME.step_splitter, self.name)
        if gone:
            raise ConfigError(f"{_NAME.step_splitter}={self.name} is gone; {gone}")
        if self.name not in STYLES:
            raise ConfigError(f"{_NAME.step_splitter} is {self.name!r}; known splitters: {', '.join(STYLES)}")
        if self.name == "regex":
            _compiled(self.separator)
        elif not self.separator:
            raise ConfigError(f"{_NAME.step_separator} is empty; give the string that stands between two steps")

    @property
    def reads_separator(self) -> bool:
        """Whether `separator` decides where it cuts."""
        return self.name in ("separator", "auto", "regex")

    def spans(self, text: str) -> list[CharSpan]:
        """Character spans (start, end) that cover `text` in order, without overlap; [] for a blank text. ConfigError where
        the pattern of ``regex`` takes too long for it."""
        source = text_of(text)
        match self.name:
            case "separator":
                return _separated(source, self.separator)
            case "lines":
                return _lines(source)
            case "sentence":
                return sentences(source)
            case "regex":
                return _matched(source, self.separator)
            case "auto":
                return style_and_spans(text, self.separator)[1]
        return numbered(source).spans


def make_splitter(name: str, separator: str = _BLANK_LINE) -> StepSplitter:
    r"""The splitter called `name`: one of `STYLES`.

    The two-character escapes ``\n``, ``\r`` and ``\t`` in `separator` (as a shell passes them) mean the control characters.
    For ``regex`` it is the pattern, as it is, and needed; splitters that do not read it are equal whatever it is.

    Raises:
        ConfigError: as `StepSplitter`.
    """
    if name == "regex":
        return StepSplitter(name, "" if separator in (_BLANK_LINE, "\\n\\n") else separator)
    for escape, character in (("\\n", "\n"), ("\\r", "\r"), ("\\t", "\t")):
        separator = separator.replace(escape, character)
    splitter = StepSplitter(name)
    return StepSplitter(name, separator) if splitter.reads_separator else splitter


def _separated(text: Text, separator: str) -> list[CharSpan]:
    r"""Steps end with a separator string, by default a blank line (``\n\n``).

    Further separators and line breaks that follow at once belong to the same step, and separators before all else to the
    first. Where the separator consists of line breaks, Windows line ends and blank lines that hold spaces count too.
    """
    breaks = separator.count("\n")
    if breaks and not separator.strip():
        # White space before the first line break belongs to the step anyway.
        pattern = rf"\n(?:[^\S\n]*\n){{{breaks - 1},}}"
    else:
        escaped = re.escape(separator)
        pattern = rf"{escaped}(?:\s*{escaped})*\s*"
    matches = list(re.finditer(pattern, text.text))
    if matches and not text.text[: matches[0].start()].strip():
        del matches[0]
    return text.cut(match.end() for match in matches)


def _lines(text: Text) -> list[CharSpan]:
    """Every line that is not blank is a step, its line break included (GSM8K's original answers)."""
    return text.cut(accumulate(len(line) + 1 for line in text.lines.split("\n")))


def _matched(text: Text, pattern: str) -> list[CharSpan]:
    """Steps open where a pattern matches. With a group called ``start`` they open where that group does, with one called
    ``end`` they end with it. ``^`` and ``$`` stand for the ends of a line.

    Raises:
        ConfigError: it takes too long for this text.
    """
    compiled = _compiled(pattern)
    named = compiled.groupindex.keys() & {"start", "end"}
    cuts: list[int] = []
    try:
        for match in compiled.finditer(text.text, timeout=PATTERN_SECONDS):
            # A group that takes no part in a match has the position -1, which is no cut.
            if "end" in named:
                cuts.append(match.end("end"))
            if "start" in named or not named:
                cuts.append(match.start("start" if named else 0))
    except TimeoutError:
        raise ConfigError(
            f"the pattern {pattern!r} takes more than {PATTERN_SECONDS:g} seconds for an answer of {len(text.text):,} "
            "characters; avoid repetitions inside repetitions, as in (a+)+"
        ) from None
    return text.cut(cuts)


@lru_cache(maxsize=16)
def _compiled(pattern: str) -> Any:
    """The pattern, compiled by `regex`: unlike that of `re`, its search can have a time limit. ConfigError without a usable
    one."""
    if not pattern:
        raise ConfigError(f"regex needs a pattern; give it in {_NAME.step_separator}, such as '^Step [0-9]+'")
    try:
        compiled = regex.compile(pattern, regex.MULTILINE)
        empty = compiled.search("", timeout=PATTERN_SECONDS) is not None
    except (regex.error, TimeoutError, OverflowError, RecursionError) as error:
        raise ConfigError(f"the pattern {pattern!r} is broken: {error}") from None
    if empty:
        raise ConfigError(f"the pattern {pattern!r} matches an empty text, so it would cut at every character")
    return compiled


# Which one serves


def choose_splitter(answers: Iterable[str], separator: str = _BLANK_LINE) -> str:
    """The splitter that a data set is read with: the one of `SPLITTERS` that serves most answers, ``separator`` if no other
    serves more; ``auto``, which decides for every answer by itself, where none serves two thirds of those with steps.

    A splitter serves the answers of its style (`style_and_spans`), ``separator`` also those with marks whose paragraphs
    would be steps without them.
    """
    separator = make_splitter("auto", separator).separator
    served = 0
    serving: Counter[str] = Counter()
    for text in answers:
        style, spans = style_and_spans(text, separator)
        names = {style} if len(spans) > 1 else set()
        source = text_of(text)
        if style == "numbered" and len(_body(source, _separated(source, separator))) > 1:
            names.add("separator")
        served += bool(names)
        serving.update(names)
    best = max(SPLITTERS, key=lambda name: serving[name])
    return "auto" if 3 * serving[best] < 2 * served else best


def style_and_spans(text: str, separator: str = _BLANK_LINE) -> tuple[str, list[CharSpan]]:
    r"""The style that serves `text`, and its spans: the first of these.

    - ``separator`` that holds more than line breaks: taken wherever it occurs.
    - ``numbered``: markers that count up at the top level. A few plain numbers among many paragraphs (facts, options) are
      no steps: those are taken where the list is most of the text, or little is around it.
    - ``separator``: two or more paragraphs. Thinking, a line that ends with a colon before all else, and GSM8K's last line
      (``#### 5``) are none where what remains is lines.
    - ``lines``: two or more lines, unless most of them are wrapped in the middle of a sentence.

    A text that none of them cuts is one step, of style ``separator``.
    """
    source = text_of(text)
    paragraphs = _separated(source, separator)
    if separator.strip() and len(paragraphs) > 1:
        return "separator", paragraphs
    marked = numbered(source)
    if len(marked.spans) > 1 and marked.clear:
        return "numbered", marked.spans
    body = _body(source, paragraphs)
    hashes = _HASHES.search(text)
    # No blank line before the hashes: the data set writes steps on lines.
    if len(body) < 2 or (hashes and hashes.start() > body[-1][0]):
        by_line = _lines(source)
        if len(by_line) > len(paragraphs) and not _is_wrapped(source.lines, len(by_line)):
            return "lines", by_line
    return "separator", paragraphs


def _body(source: Text, paragraphs: list[CharSpan]) -> list[CharSpan]:
    """The paragraphs that may be steps: without thinking, an introduction, and a last one of hashes."""
    text, body = source.text, paragraphs
    if body and any(not text[end : body[0][1]].strip() for _, end in source.thoughts):
        body = body[1:]
    if len(body) > 1 and _INTRODUCTION.fullmatch(text, *body[0]):
        body = body[1:]
    if len(body) > 1 and _HASHES.match(text, body[-1][0]):
        body = body[:-1]
    return body


def _is_wrapped(text: str, count: int) -> bool:
    """Whether half of the line ends are in the middle of a sentence: a long line that ends in a word, and a small letter."""
    wraps = 0
    lines = [line.strip(" \t") for line in text.split("\n")]
    for line, following in pairwise(lines):
        ends_in_word = line.rstrip(",")[-1:].isalpha()
        goes_on = following[:1].islower()
        wraps += len(line) >= _LONG and ends_in_word and goes_on
    return 2 * wraps >= count - 1
