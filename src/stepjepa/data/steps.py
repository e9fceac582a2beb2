r"""The steps of an answer, and of a row that holds them itself.

A splitter's `spans` cover a text in order and without overlap, the separator belongs to the step that it ends, and a text
without a boundary is one step. Thinking blocks, code fences, display maths and tables are never cut. Steps are found in the
answer's text, never in token ids, because tokenizers merge ``.\n\n`` into one token.

A row may hold its steps in a column (as `stepjepa prepare` writes it): a list of texts that are in its last answer one after
the other. What precedes the first one belongs to it, what follows a step to that step, so that spans cover the answer.
`steps_of` is the one place that answers what the steps of a row are; `rules_for` decides for a data set how it does.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, islice, pairwise
from typing import Any, NamedTuple

import regex

from stepjepa.config.option import Names
from stepjepa.data.blocks import CharSpan, Text, text_of
from stepjepa.data.chat import row_to_messages
from stepjepa.data.columns import TOTAL_COLUMN, answers_in, column_value, listed_steps
from stepjepa.data.numbered import numbered
from stepjepa.data.options import SPLITTERS, STEPS_COLUMN, STYLES, PairColumns, StepsOptions
from stepjepa.errors import ConfigError, RowError, attempted

_NAME = Names(StepsOptions)
LISTED = "list"  # the splitter's name that takes a row's own steps and refuses a row without
PATTERN_SECONDS = 2.0  # that a pattern may take for one answer
_SAMPLED_ROWS = 200  # that a splitter is chosen by
_BLANK_LINE = "\n\n"
_INTRODUCTION = re.compile(r"\s*[^\n]*[:：]\s*")
_HASHES = re.compile(r"^####[ \t]*(?!#)\S[^\n]*\s*\Z", re.MULTILINE)  # GSM8K's last line
_LONG = 40  # characters of a line that may have been wrapped


# Splitters


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

# Inline maths is passed over.
_SENTENCE_END = re.compile(
    r"""(?P<maths>(?<![\\$\w])\$(?![\s$])[^$\n]{1,200}(?<![\s\\])\$(?![\d$])|\\\([^\n]{0,200}?\\\))
    |[.!?…]["'”’»)\]*_]*\s+
    |[。！？｡।॥؟۔։።]+(?:[」』”’）)】"*]+\s+|(?![」』”’）)】"*])\s*)
    |\n\s*""",
    re.VERBOSE,
)
_OPENERS = "\"'“‘«„([*_¿¡「『（"
# A stop, with what is before it and the two characters after it, that ends no sentence.
_SHORTENED = re.compile(
    r"""(?:
      (?:\A|[\s(\["'])(?i:dr|mr|mrs|ms|prof|st|jr|vs|e\.g|i\.e|cf|ca|approx|resp|z\.b|d\.h|bzw|[a-z](?:\.[a-z])+)\.\s+..?
    | (?:\A|\s)(?i:nos?|nr|figs?|eqs?|sec|ch|vol|pp?|art|abb|tab|refs?)\.\s+\d.?
    | (?:\A|\s)[A-Za-z]\.\s+[A-Z]\.
    | (?:\A|\s)[A-Z]\.\s[A-Z]\.\s+[A-Z].?
    | (?:\A|\n)[ \t>*_\#-]*(?:\d{1,3}|[a-zA-Z]|[ivxIVX]{1,5})\.\s+..?
    | \.\s+\$[ ]                                  # the end of inline maths
    )\Z""",
    re.VERBOSE,
)
_REACH = 24  # characters before a stop that are looked at


def sentences(text: Text) -> list[CharSpan]:
    """Every sentence is a step: it ends with ``. ! ? …`` before white space, with ``。 ！ ？ ।`` and the like, or with its
    line, unless a small letter follows. Abbreviations, initials and signs of list items end none; a blank line always does.
    """
    flat = text.flat
    cuts: list[int] = []
    for match in _SENTENCE_END.finditer(flat):
        start, end = match.span()
        if match["maths"]:
            continue
        before_small_letter = flat[end : end + 8].lstrip(_OPENERS)[:1].islower()
        goes_on = before_small_letter or _SHORTENED.search(flat[max(start - _REACH, 0) : end + 2]) is not None
        if not goes_on or match[0].count("\n") > 1:
            cuts.append(end)
    return text.cut(cuts)


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
    text = source.text
    body = paragraphs
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


# The steps of a row


class StepRules(NamedTuple):
    """How the steps of a data set's rows are found.

    Attributes:
        splitter: finds those of an answer whose row does not hold them.
        column: the column in which a row may hold the steps of its last answer, None to look into none.
        required: whether a row that does not hold them there is refused; else the splitter serves it.
    """

    splitter: StepSplitter
    column: str | None = None
    required: bool = False

    @property
    def name(self) -> str:
        """The splitter's name, `LISTED` where none is asked."""
        return LISTED if self.required else self.splitter.name


class RowSteps(NamedTuple):
    """The steps of one row.

    Attributes:
        spans: of each answer's steps, in characters of the answer.
        own: whether those of the last answer are the row's own.
        unread: why the steps that the row holds are not taken: a reason (see `report.reason_words`), and what is wrong. None
            where they are, or where it holds none.
    """

    spans: list[list[CharSpan]]
    own: bool = False
    unread: tuple[str, str] | None = None


def steps_of(row: Mapping[str, Any], answers: Sequence[str], rules: StepRules) -> RowSteps:
    """The steps of a row, whose assistant messages are given in order: of the row, or as a chat template writes them.

    Raises:
        RowError: `rules.required`, and the row holds no steps, or they do not stand in its last answer.
    """
    split = rules.splitter.spans
    unread = None
    listed = column_value(row, rules.column) if rules.column else None
    if answers and (rules.required or listed not in (None, [])):
        try:
            own = spans_of_steps(answers[-1], listed_steps(row, str(rules.column)))
        except RowError as error:
            if rules.required:
                raise
            unread = error.reason, str(error)
        else:
            # They are those of the last answer; the row says nothing about others.
            others = [[] if rules.required else split(answer) for answer in answers[:-1]]
            return RowSteps([*others, own], own=True)
    return RowSteps([split(answer) for answer in answers], unread=unread)


def names_steps(row: object, column: str = STEPS_COLUMN) -> bool:
    """Whether a row says itself that its answer has several steps: it holds them, or their number."""
    if not isinstance(row, Mapping):
        return False
    steps, total = row.get(column), row.get(TOTAL_COLUMN)
    return (isinstance(steps, list) and len(steps) > 1) or (isinstance(total, int) and total > 1)


def spans_of_steps(text: str, steps: Sequence[str]) -> list[CharSpan]:
    """Spans of steps that are known already, such as those of a column, found one after the other in `text`.

    White space at a step's ends does not count, and runs of it inside may differ. Such steps may cut blocks.

    Raises:
        RowError: a step is not in `text` after the one before.
    """
    starts: list[int] = []
    reached = 0
    for number, step in enumerate(steps, start=1):
        words = step.strip()
        if not words:
            continue
        start = text.find(words, reached)
        end = start + len(words)
        if start < 0:
            spaced = re.compile(r"\s+".join(map(re.escape, words.split()))).search(text, reached)
            if spaced is None:
                where = f"after step {number - 1}" if number > 1 else "at all"
                beginning = words if len(words) <= 60 else f"{words[:60]}..."
                what = f"step {number} of {len(steps)} does not stand in the answer {where}: {beginning!r}"
                raise RowError("steps_not_found", what)
            start, end = spaced.span()
        starts.append(start)
        reached = end
    if not starts:
        return [(0, len(text))] if text.strip() else []
    return list(zip([0, *starts[1:]], [*starts[1:], len(text)], strict=True))


def join_steps(steps: Sequence[str], separator: str = "\n\n") -> str:
    """One text of steps that are known already. Blank steps are left out."""
    return separator.join(step for step in steps if step.strip())


def rules_for(
    source: Iterable[tuple[int, Any]],
    name: str,
    separator: str = "\n\n",
    column: str = STEPS_COLUMN,
    columns: PairColumns | None = None,
    splitter: StepSplitter | None = None,
) -> StepRules:
    """How the steps of a data set's rows are found.

    With ``auto`` a row's own steps are taken where they stand in its answer, and one splitter serves all other rows: the one
    that `choose_splitter` names for those among the first rows, or for all of the first rows where each holds its steps.

    Args:
        source: a `RowSource`; read with ``auto`` alone.
        name: one of `STYLES`, or `LISTED`.
        column: the column that may hold a row's steps, for ``auto`` and `LISTED`.
        splitter: the one that was chosen for another data set of the run.
    """
    if name == LISTED:
        return StepRules(make_splitter("separator"), column, True)
    if name != "auto":
        return StepRules(make_splitter(name, separator))
    if splitter is not None:
        return StepRules(splitter, column)
    rules = StepRules(make_splitter(name, separator), column)
    known: list[str] = []  # answers of the first rows
    without_steps: list[str] = []  # those of rows that do not hold their steps
    for _, row in islice(source, _SAMPLED_ROWS):
        messages = attempted(row_to_messages, row, None, columns)
        if isinstance(messages, RowError):
            continue
        answers = [message["content"] for message in answers_in(messages)]
        known += answers
        if not steps_of(row, answers[-1:], rules).own:
            without_steps += answers
    chosen = choose_splitter(without_steps or known, separator)
    return StepRules(make_splitter(chosen, separator), column)
