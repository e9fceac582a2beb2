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

from stepjepa.config.option import Names
from stepjepa.data.blocks import CharSpan, Text, text_of
from stepjepa.data.options import StepsOptions
from stepjepa.data.steps.numbered import numbered
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
    if name not in ("separator", "auto"):
        return StepSplitter(name)
    for escape, character in (("\\n", "\n"), ("\\r", "\r"), ("\\t", "\t")):
        separator = separator.replace(escape, character)
    return StepSplitter(name, separator)


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
    """Steps open where a pattern matches. ``^`` and ``$`` stand for the ends of a line.

    Raises:
        ConfigError: it takes too long for this text.
    """
    try:
        matches = list(_compiled(pattern).finditer(text.text, timeout=PATTERN_SECONDS))
    except TimeoutError:
        raise ConfigError(
            f"the pattern {pattern!r} takes more than {PATTERN_SECONDS:g} seconds for an answer of {len(text.text):,} "
            "characters; avoid repetitions inside repetitions, as in (a+)+"
        ) from None
    return text.cut(match.start() for match in matches)


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


# Sentences

# A full stop after one of these ends no sentence; after the second ones, none where a number follows.
_ABBREVIATIONS = frozenset(
    "dr mr mrs ms prof st sr jr vs e.g i.e eg ie cf ca approx resp al incl excl z.b u.a d.h bzw vgl evtl inkl p.ex ex mme "
    "mlle sra dña ud uds".split()
)
_BEFORE_NUMBERS = frozenset("no nos nr fig figs eq eqs sec ch vol p pp pt art abb tab ref refs núm".split())
# Inline maths is passed over. One sign of several is enough: the last one before white space.
_END = re.compile(
    r"(?P<maths>(?<![\\$\w])\$(?![\s$])[^$\n]{1,200}(?<![\s\\])\$(?![\d$])|\\\([^\n]{0,200}?\\\))"
    r"|(?P<stop>[.!?\u2026])(?P<close>[\"'”’»)\]*_]*)(?P<gap>\s+)"
    r"|(?P<wide>[。！？｡।॥؟۔։።]+)(?P<quote>[」』”’）)】\"*]*)\s*"
    r"|(?P<line>\n)\s*"
)
_WORD_BEFORE = re.compile(r"[^\s(\[\"'“‘]*\Z")
# What the line before a stop may hold if the stop belongs to the sign of a list's item; and such a line as a whole.
_ITEM_SIGN = re.compile(r"[ \t>*_#-]*(?:\d{1,3}|[a-zA-Z]|[ivxIVX]{1,5})\Z")
_ITEM = re.compile(r"(?:[-*+\u2022][ \t]|#{1,6}[ \t]|\||\(?(?:\d{1,3}|[a-zA-Z])[.)][ \t])")
_INITIAL = re.compile(r"[A-Z]\.[ \t]")
_INITIALS = re.compile(r"(?:[A-Z]\.)+[A-Z]")
_NAME_BEFORE = re.compile(r"(?:\A|[^\w\s][ \t]+|\b[^\W\d_a-z]\w*\.?[ \t]+)\Z")
_OPENERS = "\"'“‘«„([*_¿¡「『（"


def sentences(text: Text) -> list[CharSpan]:
    """Every sentence is a step: it ends with ``. ! ? …`` before white space and no small letter, with ``。 ！ ？ ।`` and the
    like, with a blank line, and with a line whose next one does not go on with a small letter. Abbreviations, decimal
    numbers, initials, signs of list items and inline maths end none.
    """
    flat = text.flat
    ends = [match for match in _END.finditer(flat) if match["maths"] is None and match.end() < len(flat)]
    return text.cut(match.end() for match in ends if _ends_sentence(flat, match))


def _ends_sentence(text: str, match: re.Match[str]) -> bool:
    """Whether a stop or a line's end, and the white space after it, ends a sentence."""
    start, following = match.span()
    if match["wide"]:
        return not match["quote"] or text[following - 1].isspace()
    stop, gap = match.group("stop", "gap")
    breaks = gap.count("\n") if stop else text.count("\n", start, following)
    if breaks > 1 or (breaks and _ITEM.match(text, following)):
        return True
    if text.startswith("$ ", following):  # the end of inline maths
        return False
    first = next((char for char in text[following : following + 8] if char not in _OPENERS), "")
    if first.islower():
        return False
    sign_before = text[max(start - 1, 0) : start]
    if not stop:
        return sign_before not in (",", "(")
    if stop != "." or match["close"] or sign_before in (".", "!", "?", "\u2026"):
        return True
    before = text[max(start - 24, 0) : start]
    match_before = _WORD_BEFORE.search(before)
    word = match_before[0] if match_before else ""
    if not word:
        return True
    line = before.rpartition("\n")[2]
    opens_item = len(line) < 24 and _ITEM_SIGN.match(line)
    return not opens_item and not _short(word, text, start, following, first)


def _short(word: str, text: str, start: int, following: int, first: str) -> bool:
    """Whether a word before a full stop is shortened: the stop ends no sentence."""
    if word.lower() in _ABBREVIATIONS or (first.isdigit() and word.lower() in _BEFORE_NUMBERS):
        return True
    if len(word) == 1 and word.isalpha():
        # "J. K. Rowling" and "z. B.", but "the point P. Then": what stands around a single letter tells.
        if _INITIAL.match(text, following):
            return True
        return (
            word.isupper() and first.isupper() and _NAME_BEFORE.search(text, max(start - 24, 0), start - 1) is not None
        )
    return _INITIALS.fullmatch(word) is not None


# Which splitter serves


def choose_splitter(answers: Iterable[str], separator: str = _BLANK_LINE) -> str:
    """The splitter that a data set is read with: the one of `SPLITTERS` that serves most answers, ``separator`` if no other
    serves more; ``auto``, which decides for every answer by itself, where none serves two thirds of those with steps.

    A splitter serves the answers of its style (`style_and_spans`), ``separator`` also those with marks whose paragraphs
    would be steps without them.
    """
    separator = make_splitter("auto", separator).separator
    with_steps = 0
    served: Counter[str] = Counter()
    for text in answers:
        style, spans = style_and_spans(text, separator)
        if len(spans) < 2:
            continue
        with_steps += 1
        served[style] += 1
        source = text_of(text)
        if style == "numbered" and len(_body(source, _separated(source, separator))) > 1:
            served["separator"] += 1
    best = max(SPLITTERS, key=lambda name: served[name])
    return "auto" if 3 * served[best] < 2 * with_steps else best


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
