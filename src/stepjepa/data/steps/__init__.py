r"""The steps of a row: those that it holds itself, else those that a splitter finds in its answers.

`steps_of` is the one place that answers what the steps of a row are; `rules_for` decides for a data set how it does.
A splitter's `spans` cover a text in order and without overlap, the separator belongs to the step that it ends, and a text
without a boundary is one step. Thinking blocks, code fences, display maths and tables are never cut. Steps are found in the
answer's text, never in token ids, because tokenizers merge ``.\n\n`` into one token.

A row may hold its steps in a column (as `stepjepa prepare` writes it): a list of texts that are in its last answer one after
the other. What precedes the first one belongs to it, what follows a step to that step, so that spans cover the answer.
`TOTAL_COLUMN` may say how many steps that answer has; a number that is not the one found is counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, islice
from typing import Any, NamedTuple

from stepjepa.config.gone import replacement
from stepjepa.config.option import Names
from stepjepa.data.chat import row_to_messages
from stepjepa.data.options import STEPS_COLUMN as STEPS_COLUMN
from stepjepa.data.options import TOTAL_COLUMN as TOTAL_COLUMN
from stepjepa.data.options import PairColumns, StepsOptions, column_value, listed_steps
from stepjepa.data.steps.marked import numbered
from stepjepa.data.steps.text import CharSpan as CharSpan
from stepjepa.data.steps.text import Text, sentences
from stepjepa.data.steps.text import text_of as text_of
from stepjepa.errors import ConfigError, RowError

SPLITTERS = ("separator", "numbered", "lines")  # those that `choose_splitter` chooses from; of equal ones the first
STYLES = (*SPLITTERS, "sentence", "regex", "auto")  # all that `make_splitter` knows
PATTERN_SECONDS = 2.0  # that a pattern may take for one answer
LISTED = "list"  # the splitter's name that takes a row's own steps and refuses a row without
_NAME = Names(StepsOptions)
_SAMPLED_ROWS, _MOST = 200, 10**9  # that a splitter is chosen by; a larger number is none of steps
_INTRODUCTION = re.compile(r"\s*[^\n]*[:：]\s*")
_NEXT_LINE = re.compile(r"\n[ \t]*(?=[^\W\d_])")
_LONG = 40  # characters of a line that may have been wrapped


@dataclass(frozen=True)
class StepSplitter:
    """Cuts a text into steps in one of the `STYLES`; `separator` is the pattern of ``regex``.

    Raises:
        ConfigError: unknown name, an empty separator, or no pattern or a broken one.
    """

    name: str
    separator: str = "\n\n"

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
                return separated(source, self.separator)
            case "lines":
                return lines(source)
            case "sentence":
                return sentences(source)
            case "regex":
                return matched(source, self.separator)
            case "auto":
                return style_and_spans(source, self.separator)[1]
        return numbered(source).spans


def make_splitter(name: str, separator: str = "\n\n") -> StepSplitter:
    r"""The splitter called `name`: one of `STYLES`.

    The two-character escapes ``\n``, ``\r`` and ``\t`` in `separator` (as a shell passes them) mean the control characters.
    For ``regex`` it is the pattern, as it is, and needed; splitters that do not read it are equal whatever it is.

    Raises:
        ConfigError: as `StepSplitter`.
    """
    if name == "regex":
        return StepSplitter(name, "" if separator in ("\n\n", "\\n\\n") else separator)
    for escape, character in (("\\n", "\n"), ("\\r", "\r"), ("\\t", "\t")):
        separator = separator.replace(escape, character)
    splitter = StepSplitter(name)
    return StepSplitter(name, separator) if splitter.reads_separator else splitter


def separated(text: Text, separator: str) -> list[CharSpan]:
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


def lines(text: Text) -> list[CharSpan]:
    """Every line that is not blank is a step, its line break included (GSM8K's original answers)."""
    return text.cut(accumulate([len(line) + 1 for line in text.lines.split("\n")]))


def matched(text: Text, pattern: str) -> list[CharSpan]:
    """Steps open where a pattern matches. With a group called ``start`` they open where that group does, with one called
    ``end`` they end with it. ``^`` and ``$`` stand for the ends of a line.

    Raises:
        ConfigError: it takes too long for this text.
    """
    compiled = _compiled(pattern)
    opens, ends = "start" in compiled.groupindex, "end" in compiled.groupindex
    cuts = []
    try:
        for match in compiled.finditer(text.text, timeout=PATTERN_SECONDS):
            if ends and match["end"] is not None:
                cuts.append(match.end("end"))
            if (opens and match["start"] is not None) or not (opens or ends):
                cuts.append(match.start("start" if opens else 0))
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
    import regex

    try:
        compiled = regex.compile(pattern, regex.MULTILINE)
        empty = compiled.search("", timeout=PATTERN_SECONDS) is not None
    except (regex.error, TimeoutError, OverflowError, RecursionError) as error:
        raise ConfigError(f"the pattern {pattern!r} is broken: {error}") from None
    if empty:
        raise ConfigError(f"the pattern {pattern!r} matches an empty text, so it would cut at every character")
    return compiled


def choose_splitter(answers: Sequence[tuple[str, int | None]], separator: str = "\n\n") -> str:
    """The splitter that a data set is read with: the one of `SPLITTERS` that serves most answers, ``separator`` if no other
    serves more; ``auto``, which decides for every answer by itself, where none serves two thirds of those with steps.

    A splitter serves an answer of a known number of steps if it finds that number, and other ones of its style
    (`style_and_spans`); ``separator`` also those with marks whose paragraphs would be steps without them.
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
            source = text_of(text)
            style, spans = style_and_spans(source, auto.separator)
            serving = {style} if len(spans) > 1 else set()
            if style not in ("separator", "lines") and len(_body(source, separated(source, auto.separator))) > 1:
                serving.add("separator")
            served += bool(serving)
            for name in serving & counts.keys():
                counts[name] += 1
    best = max(SPLITTERS, key=lambda name: counts[name])
    return "auto" if 3 * counts[best] < 2 * served else best


def style_and_spans(text: str | Text, separator: str = "\n\n") -> tuple[str, list[CharSpan]]:
    r"""The style that serves `text`, and its spans: the first of these.

    - ``separator`` that holds more than line breaks: taken wherever it occurs.
    - ``numbered``: markers that count up at the top level. A few plain numbers among many paragraphs (facts, options) are
      no steps: those are taken where the list is most of the text, or little is around it.
    - ``separator``: two or more paragraphs. Thinking, a line that ends with a colon before all else, and GSM8K's last line
      (``#### 5``) are none where what remains is lines.
    - ``lines``: two or more lines, unless most of them are wrapped in the middle of a sentence.

    A text that none of them cuts is one step, of style ``separator``.
    """
    source = text if isinstance(text, Text) else text_of(text)
    text, paragraphs = source.text, separated(source, separator)
    if separator.strip() and len(paragraphs) > 1:
        return "separator", paragraphs
    marked = numbered(source)
    if len(marked.spans) > 1 and marked.clear:
        return "numbered", marked.spans
    body = _body(source, paragraphs)
    # No blank line before the hashes: the data set writes steps on lines.
    if len(body) < 2 or _hashes(text) > body[-1][0]:
        by_line = lines(source)
        if len(by_line) > len(paragraphs) and not _wrapped(source.lines, len(by_line)):
            return "lines", by_line
    return "separator", paragraphs


def _body(source: Text, paragraphs: list[CharSpan]) -> list[CharSpan]:
    """The paragraphs that may be steps: without thinking, an introduction, and a last one of hashes."""
    text, body = source.text, paragraphs
    if body and any(not text[end : body[0][1]].strip() for _, end in source.thoughts):
        body = body[1:]
    if len(body) > 1 and _INTRODUCTION.fullmatch(text, *body[0]):
        body = body[1:]
    return body[:-1] if len(body) > 1 and 0 <= _hashes(text) <= body[-1][0] else body


def _hashes(text: str) -> int:
    """Where GSM8K's last line starts (``#### 5``), -1 without."""
    at = text.rfind("\n####")
    line = text[at + 5 :].strip()
    return at + 1 if at >= 0 and line and not line.startswith("#") and "\n" not in line else -1


def _wrapped(text: str, count: int) -> bool:
    """Whether half of the line ends are in the middle of a sentence: a long line that ends in a word, and a small letter."""
    wraps = 0
    for match in _NEXT_LINE.finditer(text):
        if text[match.end()].islower():
            line = text[max(match.start() - _LONG - 20, 0) : match.start()].rstrip(" \t").rpartition("\n")[2]
            wraps += len(line) >= _LONG and line.rstrip(",")[-1:].isalpha()
    return 2 * wraps >= count - 1


# Of a row


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
        unread: why the steps that the row holds are not taken: a key of `report.REASONS`, and what is wrong. None where they
            are, or where it holds none.
        total: what `TOTAL_COLUMN` says, None where it says no number.
    """

    spans: list[list[CharSpan]]
    own: bool = False
    unread: tuple[str, str] | None = None
    total: int | None = None

    @property
    def found(self) -> int:
        """Steps of the last answer, which `total` is about."""
        return len(self.spans[-1])


def steps_of(row: object, answers: Sequence[str], rules: StepRules) -> RowSteps:
    """The steps of a row, whose assistant messages are given in order: of the row, or as a chat template writes them.

    Raises:
        RowError: `rules.required`, and the row holds no steps, or they do not stand in its last answer.
    """
    total, unread = _total_of(row), None
    if rules.required or _holds_steps(row, rules.column):
        try:
            own = spans_of_steps(answers[-1], listed_steps(row, str(rules.column)))
        except RowError as error:
            if rules.required:
                raise
            unread = error.reason, str(error)
        else:  # they are those of the last answer; the row says nothing about others
            others = ([] if rules.required else rules.splitter.spans(answer) for answer in answers[:-1])
            return RowSteps([*others, own], True, None, total)
    return RowSteps(list(map(rules.splitter.spans, answers)), False, unread, total)


def _holds_steps(row: object, column: str | None) -> bool:
    """Whether there is something in the column of a row's own steps; a list without a text in it is nothing."""
    held = column_value(row, column) if isinstance(row, Mapping) and column else None
    if isinstance(held, (list, tuple)):
        return any(not isinstance(step, str) or step.strip() for step in held)
    return held is not None


def _total_of(row: object) -> int | None:
    """The number in `TOTAL_COLUMN`: as JSON has it, or as a table writes it."""
    value = row.get(TOTAL_COLUMN) if isinstance(row, Mapping) else None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < len(str(_MOST)):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _MOST or value % 1:
        return None
    return int(value)


def names_steps(row: object, column: str = STEPS_COLUMN) -> bool:
    """Whether a row says itself that its answer has several steps: it holds them, or their number."""
    own = row.get(column) if isinstance(row, Mapping) else None
    listed = isinstance(own, (list, tuple)) and len(own) > 1 and all(isinstance(step, str) for step in own)
    return listed or (_total_of(row) or 0) > 1


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
            loose = re.compile(r"\s+".join(map(re.escape, words.split()))).search(text, reached)
            if loose is None:
                where = f"after step {number - 1}" if number > 1 else "at all"
                short = words if len(words) <= 60 else f"{words[:60]}..."
                raise RowError(
                    "steps_not_found",
                    f"step {number} of {len(steps)} does not stand in the answer {where}: {short!r}",
                )
            start, end = loose.span()
        starts.append(start)
        reached = end
    cuts = starts[1:]
    return list(zip([0, *cuts], [*cuts, len(text)], strict=True)) if starts or text.strip() else []


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
    rules = StepRules(splitter or make_splitter(name, separator), column)
    if splitter is not None:
        return rules
    first: list[tuple[str, int | None]] = []  # answers and how many steps they have
    without: list[tuple[str, int | None]] = []  # those of rows that do not hold their steps
    for _, row in islice(source, _SAMPLED_ROWS):
        try:
            messages = row_to_messages(row, None, columns)
        except RowError:
            continue
        answers = [message["content"] for message in messages if message["role"] == "assistant"]
        known = [*((answer, None) for answer in answers[:-1]), (answers[-1], _total_of(row))]
        first += known
        without += [] if steps_of(row, answers[-1:], rules).own else known
    return rules._replace(splitter=make_splitter(choose_splitter(without or first, separator), separator))
