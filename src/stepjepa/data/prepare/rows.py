r"""From a raw row to a prepared one: format, steps, final answer, checks; what runs in the worker processes.

Steps are joined by blank lines in the prepared chat, so no step may hold one: what training's default splitter finds in the
chat are exactly these steps.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from stepjepa.config.option import MISSING, Names, options_of
from stepjepa.data.answers import after_hashes, answers_match, final_answer, number_of
from stepjepa.data.blocks import MARK, answer_of, has_thinking, holds_code
from stepjepa.data.chat import one_turn, row_to_messages
from stepjepa.data.columns import absent, as_object, chat_column, column_value, form_of, listed_columns, listed_steps
from stepjepa.data.options import PairColumns
from stepjepa.data.options import text_of as cell_text
from stepjepa.data.prepare.options import PUBLISHED_LENGTH, RESPONSE_COLUMN, SYSTEM_PROMPT, PrepareOptions
from stepjepa.data.steps import LISTED, STEPS_COLUMN, TOTAL_COLUMN, StepSplitter, join_steps, make_splitter, text_of
from stepjepa.errors import DataError, RowError, attempted, said
from stepjepa.utils.files import line_text, line_value
from stepjepa.utils.text import counted, lone_surrogate

_NAME = Names(PrepareOptions)
MAX_TEXT = 1_000_000  # characters; what is longer is no answer, and cutting it into steps would take minutes
LINE_BYTES = 16 * 2**20  # a longer line is counted as dropped; no chat has that much text
KEY_BITS = 64
_SHOWN = 160  # characters of a dropped row
_JOIN = "\n\n"
# GSM8K itself holds line separators (U+2028), at which `str.splitlines` cuts.
_LINE_ENDS = str.maketrans({"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})
_CALCULATOR_MARK = re.compile(r"<<[^\n]*?>>")
_BLANK_LINES = re.compile(r"\A(?:[^\S\n]*\n)+")
_FINAL = re.compile(r"(?:\A|\n)[ \t]*####[ \t]*(\S[^\n]*)\s*\Z")

# Number; bytes of a line, an object with columns, or what is wrong where it could not be read.
RawRow = tuple[int, Any]


class Kept(NamedTuple):
    """A prepared row: what is written with its line end, a hash of the question (`KEY_BITS` bits), how many steps it has,
    how many pieces were too short to be steps, whether it has a system message, and how the question begins."""

    number: int
    line: bytes
    key: int
    steps: int
    short: int
    prompted: bool
    question: str


class Dropped(NamedTuple):
    """A raw row that is left out: its number in the source, a short reason, what is wrong, and how the row begins."""

    number: int
    reason: str
    what: str
    text: str


# Formats


class RawFormat(NamedTuple):
    """A format, why it was chosen, and the columns that are not those which training reads: of the question, and of the
    response in which steps are found."""

    name: str
    question: str | None = None
    response: str | None = None
    why: str = "as given"


@dataclass(frozen=True)
class RawExample:
    """The parts of one raw row.

    Attributes:
        question: without surrounding white space.
        answer: the data set's own, as it was.
        ground_truth: the final answer where a column or a ``####`` line names it.
        response: the text in which steps are found unless there are `pieces`, without its final ``####`` line.
        final: what follows that ``####``.
        pieces: the steps, where the row names them itself.
        system: the row's own system message.
    """

    question: str
    answer: str
    ground_truth: str | None
    response: str = ""
    final: str | None = None
    pieces: Sequence[str] | None = None
    system: str | None = None


def recognise(rows: Sequence[Any], options: PrepareOptions, name: str) -> RawFormat:
    """The format of a file's first rows; where it is given, with its columns.

    Args:
        rows: objects with columns, or what else JSON can hold.
        name: of the file, for messages.

    Raises:
        DataError: none of the formats, or a column that no row has.
    """
    objects = [row for row in rows if isinstance(row, Mapping)]
    if not objects:
        raise DataError(f"{name}: the rows are JSON of type {type(rows[0]).__name__}; JSON objects are expected")
    columns = listed_columns(objects[0])
    for option in options_of(PrepareOptions):
        column = getattr(options, option)
        if (
            option.endswith("_column")
            and column
            and all(column_value(row, column, MISSING) is MISSING for row in objects)
        ):
            message = f"none of the first rows has the column {option} names, {column!r} (found: {columns})"
            raise DataError(f"{name}: {message}")
    formats = Counter(form for form in (_format_of(row, options) for row in objects) if form is not None)
    if not formats:
        raise DataError(
            f"{name}: format not recognised (columns found: {columns}); name the columns with "
            f"--{_NAME.question_column} and --{_NAME.response_column}, or give --{_NAME.format}"
        )
    form, count = formats.most_common(1)[0]
    if options.format != "auto":
        return form
    return form._replace(why=f"recognised: {count} of the first {counted(len(rows), 'row')}")


def _format_of(row: Mapping[str, Any], options: PrepareOptions) -> RawFormat | None:
    """Format and columns of one row, None where it shows nothing."""
    question = options.question_column
    response = options.response_column
    generated = None
    if response is None and options.format in ("auto", "teacher"):
        generated = _response_column(row)
    form = RawFormat(options.format, question, response or generated or options.answer_column)
    if form.name == "teacher":
        return form._replace(response=form.response or RESPONSE_COLUMN)
    if form.name != "auto":
        return form
    messages = attempted(_chat_of, row, form, options)
    if isinstance(messages, RowError):
        return None
    if question or response:
        return form._replace(name="columns")
    if generated:
        return form._replace(name="teacher")
    if chat_column(row):
        return form._replace(name="chats")
    _, final = _split_final(messages[-1]["content"])
    return form._replace(name="columns" if final is None else "gsm8k")


def _response_column(row: Mapping[str, Any]) -> str | None:
    """The column with a generated response, None without one or with several."""
    if row.get(RESPONSE_COLUMN) is not None:
        return RESPONSE_COLUMN
    names = [name for name in row if isinstance(name, str) and (name == "response" or name.endswith("_response"))]
    return names[0] if len(names) == 1 and row[names[0]] is not None else None


def _chat_of(row: Mapping[str, Any], form: RawFormat, options: PrepareOptions) -> list[dict[str, str]]:
    """The chat of a raw row, a list of steps as one text; RowError where there is none."""
    answer = form_of(row).answer
    response = form.response or answer
    if options.step_splitter == LISTED:
        row = {**row, response: join_steps(listed_steps(row, response))}
    if form.question:
        return row_to_messages(row, None, PairColumns(form.question, response))
    if form.response:
        value = column_value(row, response)
        if value is None:
            raise RowError("no_answer", absent(row, response))
        row = {**row, answer: value}
    return row_to_messages(row)


def read_example(row: object, form: RawFormat, options: PrepareOptions) -> RawExample:
    """The parts of one raw row.

    Raises:
        RowError: it is no chat of one question and its answer, or one of them is empty.
    """
    row = as_object(row)
    system, *turn = one_turn(_chat_of(row, form, options))
    for name, text in zip(("question", "answer"), turn, strict=True):
        if len(text) > MAX_TEXT:
            raise RowError("text_too_long", f"the {name} has {len(text):,} characters; at most {MAX_TEXT:,} are read")
        if not text.strip():
            raise RowError("empty_text", f"the {name} is empty")
    question, answer = map(clean_lines, turn)
    pieces = final = None
    response = answer
    if options.step_splitter == LISTED:
        pieces = [clean_lines(step) for step in listed_steps(row, form.response or form_of(row).answer)]
    else:
        response, final = _split_final(answer)
    if form.name == "gsm8k":
        if final is None:
            raise RowError(
                "no_final_answer", f"the answer does not end in a line '#### ...': it ends in {answer[-40:]!r}"
            )
        if options.calculator_marks == "drop":
            response = _CALCULATOR_MARK.sub("", response)
    own_column = options.answer_column or form_of(row).answer
    if form.response not in (None, own_column):
        answer = clean_lines(cell_text(column_value(row, own_column))) or answer
    truth = cell_text(column_value(row, options.ground_truth_column or "ground_truth"))
    return RawExample(question.strip(), answer, truth.strip() or final, response, final, pieces, system)


def _split_final(text: str) -> tuple[str, str | None]:
    r"""A text without its last line ``#### 72``, and what follows the hashes; None without such a line.

    A text with a ``\boxed{}`` has its answer there: ``####`` is a heading in it. Of several such lines the first is the
    answer, so a text that goes on to another one does not end in it. At the end of code, words after hashes are a comment.
    """
    match = None if "\\boxed" in text else _FINAL.search(text)
    if match is None:
        return text, None
    final = match[1].strip()
    comment = number_of(final) is None and holds_code(text)
    if comment or after_hashes(answer_of(text)) != final:
        return text, None
    return text[: match.start()], final


def clean_lines(text: str) -> str:
    """A text with line feeds as line ends, without blank lines at its start and white space at its end."""
    return blank_lines_off(text.replace("\r\n", "\n").replace("\r", "\n"))


def blank_lines_off(text: str) -> str:
    """A text without blank lines at its start and white space at its end: its first line keeps its indentation."""
    return _BLANK_LINES.sub("", text).rstrip()


# Steps


class Steps(NamedTuple):
    """The answer that is written, its steps in order, and how many pieces were too short to be steps."""

    content: str
    steps: list[str]
    short: int


class Converter:
    """Prepares rows.

    Args:
        form: the rows' format and columns.

    Attributes:
        least: `length` of a step at least.
    """

    def __init__(self, form: RawFormat, options: PrepareOptions):
        self._form, self._options = form, options
        named = form.name == "gsm8k" or options.step_splitter == LISTED
        style = options.step_splitter
        if style in ("auto", LISTED):
            style = "lines" if named else "auto"
        self._splitter, self._blank_lines = make_splitter(style, options.step_separator), make_splitter("separator")
        usual = 1 if named else PUBLISHED_LENGTH
        self.least = usual if options.min_step_length is None else options.min_step_length

    def __call__(self, rows: Sequence[RawRow]) -> list[Kept | Dropped]:
        """One outcome a row, in order; blank lines have none."""
        outcomes: list[Kept | Dropped] = []
        for number, raw in rows:
            try:
                row = parse(raw)
                if row is not None:
                    outcomes.append(self._prepared(number, row))
            except RowError as error:
                outcomes.append(Dropped(number, error.reason, said(error), _beginning(raw)))
        return outcomes

    def _prepared(self, number: int, row: object) -> Kept:
        options = self._options
        example = read_example(row, self._form, options)
        content, steps, short = self.steps_of(example)
        if len(steps) < options.min_steps:
            more = f" and {short} too short for one (--{_NAME.min_step_length} {self.least})" if short else ""
            raise RowError("too_few_steps", f"{counted(len(steps), 'step')} found{more}")
        if options.max_steps is not None and len(steps) > options.max_steps:
            raise RowError("too_many_steps", f"{len(steps)} steps found")
        messages = [{"role": "user", "content": example.question}, {"role": "assistant", "content": content}]
        system = example.system or options.system_prompt
        if system == SYSTEM_PROMPT and "\\boxed" not in content and not example.system:
            system = None  # it asks for a box
        if system:
            messages.insert(0, {"role": "system", "content": system})
        prepared = {
            "question": example.question,
            "answer": example.answer,
            "ground_truth": self._checked_truth(example, content),
            STEPS_COLUMN: steps,
            TOTAL_COLUMN: len(steps),
            "messages": messages,
        }
        line = json.dumps(prepared, ensure_ascii=False)
        half = lone_surrogate(line)
        if half is not None:
            raise RowError("broken_text", f"a text holds {half} without its other half, which is no character")
        data = f"{line.translate(_LINE_ENDS)}\n".encode()
        key = question_key(example.question)
        return Kept(number, data, key, len(steps), short, bool(system), example.question[:_SHOWN])

    def steps_of(self, example: RawExample) -> Steps:
        """The steps of an example, the final answer at the end of the last one.

        Raises:
            RowError: the response is nothing but thoughts.
        """
        texts = example.pieces
        if texts is None:
            texts = response_parts(example.response, self._options.keep_thinking)
        if self._form.name != "gsm8k" and any(map(holds_code, texts)):
            return self._code_steps(texts, example)
        if example.pieces is None:
            texts = [piece for text in texts for piece in _cut(text, self._splitter)]
        pieces = [self._one_paragraph(trimmed(text)) for text in texts if text.strip()]
        fitting = fit_lengths(pieces, self.least, self._options.drop_short)
        # An unclosed code fence, for one, makes one step of all that follows.
        content = _JOIN.join(self._with_final(fitting, example.final))
        steps = [trimmed(step) for step in _cut(content, self._blank_lines)]
        return Steps(_JOIN.join(steps), steps, len(pieces) - len(fitting))

    def _code_steps(self, texts: Sequence[str], example: RawExample) -> Steps:
        """Steps of an answer with code, which stays as it is, character by character: they are stretches of it, blank lines
        inside a step included, and none is left out for being short."""
        if example.pieces is None:
            glue = ""
            pieces = _cut(_JOIN.join(texts), self._splitter)
        else:
            glue = _JOIN
            pieces = [trimmed(text) for text in texts if text.strip()]
        fitting = fit_lengths(pieces, self.least, drop=False, glue=glue)
        short = len(pieces) - len(fitting)
        steps = self._with_final(fitting, example.final)
        content = glue.join(steps)
        return Steps(content, [trimmed(step) for step in steps], short)

    def _with_final(self, steps: list[str], final: str | None) -> list[str]:
        """The steps with the final answer at the end of the last one."""
        if final is None:
            return steps
        written = f"\\boxed{{{final}}}" if self._options.final_answer == "boxed" else f"#### {final}"
        return [*steps[:-1], f"{steps[-1]}\n{written}"] if steps else [written]

    def _one_paragraph(self, piece: str) -> str:
        """A piece without blank lines outside of code, maths and tables."""
        return "\n".join(map(blank_lines_off, _cut(piece, self._blank_lines)))

    def _checked_truth(self, example: RawExample, content: str) -> str | None:
        """The ground truth; with ``require_correct`` checked against the response."""
        required = self._options.require_correct
        truth = example.ground_truth
        if truth is None:
            own = None if example.answer == example.response else example.answer
            if own is None and required:
                raise RowError("no_ground_truth", "nothing but the response itself says what the final answer is")
            truth = final_answer(own or content)
        elif "####" in truth or "\\boxed" in truth:
            truth = final_answer(truth) or truth
        if required:
            answer = final_answer(content)
            if not answers_match(answer, truth):
                what = f"the response ends in {_short(answer)}, the ground truth is {_short(truth)}"
                raise RowError("wrong_answer", what)
        return truth


def _beginning(raw: object) -> str:
    """How a raw row begins, for messages."""
    if isinstance(raw, RowError):
        return ""
    text = raw[:_SHOWN].decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)
    return text[:_SHOWN].strip()


def parse(raw: object) -> object:
    """The row that a line of bytes holds, None for a blank line; what is no bytes is a row already.

    Raises:
        RowError: it cannot be read.
    """
    if isinstance(raw, RowError):
        raise raw
    if not isinstance(raw, bytes):
        return raw
    text = line_text(raw, LINE_BYTES)
    if not text:
        return None
    row = line_value(text, raw)
    if row is None:
        raise RowError("not_an_object", "the row is null, not an object with columns")
    return row


def question_key(question: str) -> int:
    """A hash of the question, the same for other letter case, other spaces and other forms of the same characters."""
    text = " ".join(unicodedata.normalize("NFKC", question).casefold().split())
    digest = hashlib.blake2b(text.encode(), digest_size=KEY_BITS // 8).digest()
    return int.from_bytes(digest, "big")


def question_of(messages: Sequence[Mapping[str, str]]) -> str:
    """What a chat asks: all that the user says in it."""
    return "\n".join([message["content"] for message in messages if message["role"] == "user"])


def response_parts(text: str, keep_thinking: bool) -> list[str]:
    """What a response says after its thinking; with `keep_thinking` what is inside and between it too, without the marks.

    Raises:
        RowError: nothing is left.
    """
    if not has_thinking(text):
        return [text]
    pieces = [answer_of(text)]
    if keep_thinking:
        thoughts = text_of(text).thoughts
        # The stretches before, between and inside of thinking.
        places = [0, *(place for span in thoughts for place in span)]
        pieces = [text[start:end] for start, end in pairwise(places)] + pieces
    # Marks in a code fence are what the code is about.
    parts = [blank_lines_off(piece if "```" in piece else MARK.sub("", piece)) for piece in pieces]
    parts = [part for part in parts if part]
    if not parts:
        raise RowError("only_thinking", f"the response is only a thinking block; --{_NAME.keep_thinking} keeps it")
    return parts


def trimmed(text: str) -> str:
    """A text without blank lines and white space around it; the first line keeps its indentation where the next has some."""
    text = blank_lines_off(text)
    below = text.partition("\n")[2]
    return text if below[:1].isspace() else text.strip()


def fit_lengths(pieces: Sequence[str], least: int, drop: bool, glue: str = "\n") -> list[str]:
    """Pieces of `least` characters or more; a wide one (Chinese, Japanese, Korean) says about as much as four letters, and
    counts as four.

    A shorter one joins the next piece if it is a heading or the first, else the one before it, with `glue` between. With
    `drop` it is left out, unless it holds the final answer.
    """
    fitting: list[str] = []
    lead = ""
    for piece in pieces:
        if lead:
            piece, lead = f"{lead}{glue}{piece}", ""
        words = piece.strip()
        if _length(words) >= least:
            fitting.append(piece)
        elif drop and "\\boxed" not in piece and "####" not in piece:
            continue
        elif not fitting or _announces(words):
            lead = piece
        else:
            fitting[-1] += f"{glue}{piece}"
    if lead and fitting:
        fitting[-1] += f"{glue}{lead}"
    elif lead:
        fitting.append(lead)
    return fitting


def _length(words: str) -> int:
    """Characters, a wide one counted as four."""
    if words.isascii():
        return len(words)
    return len(words) + 3 * sum(unicodedata.east_asian_width(letter) in "WF" for letter in words)


def _announces(words: str) -> bool:
    """Whether words are a heading, a rule, a title in bold or end in a colon: what follows belongs to them."""
    bold = words[:2] == words[-2:] == "**"
    return bold or words.startswith(("#", "---")) or words.rstrip("*_ ").endswith(":")


def _cut(text: str, splitter: StepSplitter) -> list[str]:
    return [text[start:end] for start, end in splitter.spans(text)]


def _short(text: str | None) -> str:
    return "nothing" if text is None else repr(text if len(text) <= 40 else f"{text[:40]}...")
