r"""The steps of an answer, and of a row that lists them.

A splitter's `spans` cover a text in order and without overlap, the separator belongs to the step that it ends, and a text
without a boundary is one step. Thinking blocks, code fences, display maths and tables are never cut. Splitters read the
answer's text, never token ids, because tokenizers merge ``.\n\n`` into one token.

A row may list its steps in a column, as `stepjepa prepare` writes it: texts that occur in its last answer one after the
other. Text before the first step belongs to it, and text after a step to that step, so that spans cover the answer.
Only `steps_of` decides the steps of a row, by the rules that `rules_for` chooses for its data set.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, islice, pairwise
from typing import Any, NamedTuple

import regex

from stepjepa.config.option import Names
from stepjepa.data.blocks import CharSpan, Text, text_of
from stepjepa.data.chat import row_to_messages
from stepjepa.data.columns import Row, answers_in, column_value, listed_steps
from stepjepa.data.numbered import numbered
from stepjepa.data.options import SPLITTERS, STYLES, PairColumns, StepsOptions
from stepjepa.data.rendered import quoted
from stepjepa.errors import ConfigError, RowError, attempted

_NAME = Names(StepsOptions)
# The name of the splitter that reads the steps from a column, and refuses a row without them.
LISTED = "list"
# The time limit of a pattern for one answer, since a user's pattern may backtrack exponentially.
PATTERN_SECONDS = 2.0
# The number of rows from which `rules_for` chooses a splitter.
_SAMPLED_ROWS = 200
_BLANK_LINE = "\n\n"
_INTRODUCTION = re.compile(r"\s*[^\n]*[:：]\s*")
# GSM8K's last line, #### 72
_HASHES = re.compile(r"^####[ \t]*(?!#)\S[^\n]*\s*\Z", re.MULTILINE)
# The minimum length of a line that may have been wrapped.
_LONG = 40


# Splitters


@dataclass(frozen=True)
class StepSplitter:
    """Cuts a text into steps in one of the `STYLES`; for ``regex``, `separator` is the pattern. `make_splitter` makes it."""

    name: str
    separator: str = _BLANK_LINE

    def spans(self, text: str) -> list[CharSpan]:
        """Return character spans (start, end) that cover `text` in order, without overlap; [] for a blank text.

        Raises:
            ConfigError: the pattern of ``regex`` takes too long.
        """
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
    r"""Make the splitter called `name`, one of `STYLES`.

    The two-character escapes ``\n``, ``\r`` and ``\t`` in `separator` (as a shell passes them) stand for the control
    characters. For ``regex``, it is the pattern, which is required and used unchanged. Splitters of the same name that do
    not use `separator` compare equal, whatever its value.

    Raises:
        ConfigError: an unknown name, an empty separator, or a missing or broken pattern.
    """
    if name not in STYLES:
        raise ConfigError(
            f"{_NAME.step_splitter} is {name!r}; known splitters: {', '.join(STYLES)}"
        )
    if name == "regex":
        # The default separator is no pattern.
        if separator in (_BLANK_LINE, "\\n\\n"):
            raise ConfigError(
                f"regex needs a pattern; give it in {_NAME.step_separator}, such as '^Step [0-9]+'"
            )
        _compiled(separator)
        return StepSplitter(name, separator)
    if name not in ("separator", "auto"):
        return StepSplitter(name)
    for escape, character in (("\\n", "\n"), ("\\r", "\r"), ("\\t", "\t")):
        separator = separator.replace(escape, character)
    if not separator:
        raise ConfigError(f"{_NAME.step_separator} is empty; give the text between two steps")
    return StepSplitter(name, separator)


def _separated(text: Text, separator: str) -> list[CharSpan]:
    r"""Steps end with a separator string, by default a blank line (``\n\n``).

    Further separators and line breaks directly after it belong to the same step; those at the start of the text, to the
    first. If the separator consists of line breaks, Windows line ends and lines of only spaces count too.
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
    """Every nonblank line is a step, with its line break (GSM8K's original answers)."""
    return text.cut(accumulate(len(line) + 1 for line in text.lines.split("\n")))


def _matched(text: Text, pattern: str) -> list[CharSpan]:
    """Steps open at every match of a pattern. ``^`` and ``$`` match at the ends of a line.

    Raises:
        ConfigError: the pattern takes too long for this text.
    """
    try:
        matches = list(_compiled(pattern).finditer(text.text, timeout=PATTERN_SECONDS))
    except TimeoutError:
        raise ConfigError(
            f"the pattern {pattern!r} takes more than {PATTERN_SECONDS:g} seconds for an answer of {len(text.text):,} "
            "characters; avoid nested repetitions, as in (a+)+"
        ) from None
    return text.cut(match.start() for match in matches)


@lru_cache(maxsize=16)
def _compiled(pattern: str) -> Any:
    """Compile a pattern with `regex`, whose search has a time limit, unlike that of `re`; ConfigError for a bad pattern."""
    try:
        compiled = regex.compile(pattern, regex.MULTILINE)
        empty = compiled.search("", timeout=PATTERN_SECONDS) is not None
    except (regex.error, TimeoutError, OverflowError, RecursionError) as error:
        raise ConfigError(f"the pattern {pattern!r} is broken: {error}") from None
    if empty:
        raise ConfigError(
            f"the pattern {pattern!r} matches the empty string, so it would cut at every character"
        )
    return compiled


# Sentences

# The end of a sentence, by script. Inline maths matches first, so that its dots are skipped.
_SENTENCE_END = re.compile(
    r"""(?P<maths>(?<![\\$\w])\$(?![\s$])[^$\n]{1,200}(?<![\s\\])\$(?![\d$])|\\\([^\n]{0,200}?\\\))
    |[.!?…]["'”’»)\]*_]*\s+
    |[。！？｡।॥؟۔։።]+(?:[」』”’）)】"*]+\s+|(?![」』”’）)】"*])\s*)
    |\n\s*""",
    re.VERBOSE,
)
_OPENERS = "\"'“‘«„([*_¿¡「『（"
# A full stop that does not end a sentence, with the text before it and the two characters after it: abbreviations,
# initials, numbers of list items.
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
# The number of characters before a stop in which `_SHORTENED` searches.
_REACH = 24


def sentences(text: Text) -> list[CharSpan]:
    """Every sentence is a step. It ends with ``. ! ? …`` before white space, with ``。 ！ ？ ।`` and the like, or with its
    line, unless a lower-case letter follows. Abbreviations, initials and list numbers never end it; a blank line always
    does.
    """
    flat = text.flat
    cuts: list[int] = []
    for match in _SENTENCE_END.finditer(flat):
        start, end = match.span()
        if match["maths"]:
            continue
        before_small_letter = flat[end : end + 8].lstrip(_OPENERS)[:1].islower()
        goes_on = (
            before_small_letter
            or _SHORTENED.search(flat[max(start - _REACH, 0) : end + 2]) is not None
        )
        if not goes_on or match[0].count("\n") > 1:
            cuts.append(end)
    return text.cut(cuts)


# Which splitter to use


def choose_splitter(answers: Iterable[str], separator: str = _BLANK_LINE) -> str:
    """Choose the splitter for a data set: the one of `SPLITTERS` that serves the most answers, in a tie the first of them;
    ``auto``, which decides for every answer separately, if no splitter serves two thirds of the answers with steps.

    A splitter serves the answers of its style (`style_and_spans`); ``separator`` also serves numbered answers that have
    several paragraphs.
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
    r"""Choose the style of `text`, and return it with its spans. The first style that applies wins:

    - ``separator`` if the separator does not consist only of white space and occurs in the text.
    - ``numbered``: markers that count up at the top level. Plain numbers qualify only if their list makes up most of the
      text or has little text around it: a few of them among many paragraphs are facts or options, not steps.
    - ``separator``: two or more paragraphs. Thinking, a first line that ends with a colon, and GSM8K's last line
      (``#### 5``) do not count as paragraphs.
    - ``lines``: two or more lines, unless most of them are wrapped in the middle of a sentence.

    A text that no style cuts is one step, of style ``separator``.
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
    # Without a blank line before GSM8K's last line, line breaks separate the steps.
    if len(body) < 2 or (hashes and hashes.start() > body[-1][0]):
        by_line = _lines(source)
        if len(by_line) > len(paragraphs) and not _is_wrapped(source.lines, len(by_line)):
            return "lines", by_line
    return "separator", paragraphs


def _body(source: Text, paragraphs: list[CharSpan]) -> list[CharSpan]:
    """The paragraphs that may be steps: without thinking, an introduction, and GSM8K's last line."""
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
    """Whether half of the line ends are inside a sentence: a long line ends in a word, and a lower-case letter follows."""
    wraps = 0
    lines = [line.strip(" \t") for line in text.split("\n")]
    for line, following in pairwise(lines):
        ends_in_word = line.rstrip(",")[-1:].isalpha()
        goes_on = following[:1].islower()
        wraps += len(line) >= _LONG and ends_in_word and goes_on
    return 2 * wraps >= count - 1


# The steps of a row


class StepRules(NamedTuple):
    """How to split the answers of a data set into steps.

    Attributes:
        splitter: for answers whose row does not list their steps.
        column: the column that may list the steps of the last answer; None if rows never do.
        required: whether a row that does not list its steps is refused; else the splitter serves it.
    """

    splitter: StepSplitter
    column: str | None = None
    required: bool = False

    @property
    def name(self) -> str:
        """The splitter's name, or `LISTED` if the rows must list their steps."""
        return LISTED if self.required else self.splitter.name


class RowSteps(NamedTuple):
    """The steps of one row.

    Attributes:
        spans: for each answer, the spans of its steps, in characters of the answer.
        own: whether the row lists the steps of its last answer.
        unread: why the listed steps are not used: a reason (see `report.reason_words`), and what is wrong. None if they are
            used, or if the row lists none.
    """

    spans: list[list[CharSpan]]
    own: bool = False
    unread: tuple[str, str] | None = None


def steps_of(row: Row, answers: Sequence[str], rules: StepRules) -> RowSteps:
    """Return the steps of a row.

    Args:
        answers: the texts of its assistant messages in order: those of the row, or as a chat template writes them.

    Raises:
        RowError: `rules.required` is set, and the row lists no steps, or its last answer does not contain them.
    """
    split = rules.splitter.spans
    unread = None
    listed = column_value(row, rules.column) if rules.column else None
    if answers and (rules.required or listed not in (None, [])):
        try:
            last = spans_of_steps(answers[-1], listed_steps(row, str(rules.column)))
        except RowError as error:
            if rules.required:
                raise
            unread = error.reason, str(error)
        else:
            # A row lists the steps of its last answer only.
            earlier = [[] if rules.required else split(answer) for answer in answers[:-1]]
            return RowSteps([*earlier, last], own=True)
    return RowSteps([split(answer) for answer in answers], unread=unread)


def spans_of_steps(text: str, steps: Sequence[str]) -> list[CharSpan]:
    """Locate listed steps, such as those of a column, one after the other in `text`, and return their spans.

    White space at the ends of a step is ignored, and runs of it inside may differ. Such steps may cut through blocks.

    Raises:
        RowError: a step does not occur in `text` after the step before it.
    """
    starts: list[int] = []
    reached = 0
    for number, step in enumerate(steps, start=1):
        words = step.strip()
        if not words:
            continue
        start = text.find(words, reached)
        end = start + len(words)
        # The line breaks in the answer may differ from those in the step.
        if start < 0:
            spaced = re.compile(r"\s+".join(map(re.escape, words.split()))).search(text, reached)
            if spaced is None:
                where = f"after step {number - 1}" if number > 1 else "at all"
                what = (
                    f"step {number} of {len(steps)} is not in the answer {where}: {quoted(words)}"
                )
                raise RowError("steps_not_found", what)
            start, end = spaced.span()
        starts.append(start)
        reached = end
    if not starts:
        return [(0, len(text))] if text.strip() else []
    return list(zip([0, *starts[1:]], [*starts[1:], len(text)], strict=True))


def join_steps(steps: Sequence[str]) -> str:
    """Join steps into one text, without blank ones."""
    return _BLANK_LINE.join(step for step in steps if step.strip())


def rules_for(
    source: Iterable[tuple[int, Any]],
    options: StepsOptions,
    columns: PairColumns | None,
    splitter: StepSplitter | None = None,
) -> StepRules:
    """Choose how to split the answers of a data set into steps.

    With ``auto``, listed steps are used where they are in the row's answer, and one splitter serves all other rows: the
    choice of `choose_splitter` for such rows among the first rows, or for all of the first rows if each of them lists its
    steps.

    Args:
        source: a `RowSource`; read only for ``auto``.
        columns: the two columns of a chat; None for the known names.
        splitter: the splitter that was chosen for another data set of the run.
    """
    name, separator, column = options.step_splitter, options.step_separator, options.steps_column
    if name == LISTED:
        return StepRules(make_splitter("separator"), column, True)
    if name != "auto":
        return StepRules(make_splitter(name, separator))
    if splitter is not None:
        return StepRules(splitter, column)
    rules = StepRules(make_splitter(name, separator), column)
    # The answers of the first rows, and those among them whose row does not list their steps.
    sampled: list[str] = []
    without_steps: list[str] = []
    for _, row in islice(source, _SAMPLED_ROWS):
        messages = attempted(row_to_messages, row, None, columns)
        if isinstance(messages, RowError):
            continue
        answers = [message["content"] for message in answers_in(messages)]
        sampled += answers
        if not steps_of(row, answers[-1:], rules).own:
            without_steps += answers
    chosen = choose_splitter(without_steps or sampled, separator)
    return StepRules(make_splitter(chosen, separator), column)
