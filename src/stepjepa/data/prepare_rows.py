r"""From a raw row to a prepared one: format, steps, final answer, checks. The worker processes run this code.

Blank lines separate the steps in the prepared chat, so no step may contain one: the default splitter of training then cuts
the chat into exactly these steps.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from stepjepa.config.option import MISSING, Names
from stepjepa.data.answers import after_hashes, answers_match, final_answer, number_of
from stepjepa.data.blocks import MARK, answer_of, has_thinking, holds_code, text_of
from stepjepa.data.chat import one_turn, row_to_messages
from stepjepa.data.columns import (
    TOTAL_COLUMN,
    Chat,
    Messages,
    Row,
    absent,
    as_object,
    chat_column,
    column_value,
    first_filled,
    form_of,
    listed_columns,
    refuse_half_characters,
)
from stepjepa.data.options import (
    PUBLISHED_LENGTH,
    RESPONSE_COLUMN,
    STEPS_COLUMN,
    SYSTEM_PROMPT,
    PairColumns,
    PrepareOptions,
)
from stepjepa.data.options import text_of as cell_text
from stepjepa.data.steps import StepSplitter, make_splitter
from stepjepa.errors import DataError, RowError, attempted
from stepjepa.utils.text import counted

_NAME = Names(PrepareOptions)
# In characters. A longer text is not an answer, and splitting it into steps would take minutes.
MAX_TEXT = 1_000_000
KEY_BITS = 64
_JOIN = "\n\n"
# GSM8K itself contains line separators (U+2028), at which `str.splitlines` splits; JSON's escapes keep a row on one line.
_LINE_ENDS = str.maketrans({"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})
_CALCULATOR_MARK = re.compile(r"<<[^\n]*?>>")
_BLANK_LINES = re.compile(r"\A(?:[^\S\n]*\n)+")
_FINAL = re.compile(r"(?:\A|\n)[ \t]*####[ \t]*(\S[^\n]*)\s*\Z")


class Kept(NamedTuple):
    """A prepared row: the line to write, with its line end; a hash of the question (`KEY_BITS` bits); and its number of
    steps."""

    line: bytes
    key: int
    steps: int


# Formats


class RawFormat(NamedTuple):
    """A format, with its question column and its response column, whose text is split into steps; None stands for the
    column that training reads."""

    name: str
    question: str | None = None
    response: str | None = None


class RawExample(NamedTuple):
    """The parts of one raw row.

    Attributes:
        question: without surrounding white space.
        answer: the answer column of the data set, with clean line ends.
        ground_truth: the final answer in a column or on a ``####`` line.
        response: the text that is split into steps, without its final ``####`` line.
        final: the text after that ``####``.
        system: the row's system message.
    """

    question: str
    answer: str
    ground_truth: str | None
    response: str = ""
    final: str | None = None
    system: str | None = None


def recognise(rows: Sequence[Any], options: PrepareOptions, name: str) -> RawFormat:
    """Recognise the format of a file by its first rows; if the options name the format, only its columns are looked up.

    Args:
        rows: objects with columns, or any other JSON.
        name: of the file, for messages.

    Raises:
        DataError: no known format, or a column that no row has.
    """
    objects = [row for row in rows if isinstance(row, Mapping)]
    if not objects:
        raise DataError(
            f"{name}: the rows are JSON of type {type(rows[0]).__name__}; JSON objects are expected"
        )
    columns = listed_columns(objects[0])
    for column in (options.question_column, options.response_column, options.ground_truth_column):
        if column and all(column_value(row, column, MISSING) is MISSING for row in objects):
            raise DataError(
                f"{name}: none of the first rows has the column {column!r} (found: {columns})"
            )
    formats = Counter(filter(None, (_format_of(row, options) for row in objects)))
    if not formats:
        raise DataError(
            f"{name}: format not recognised (columns found: {columns}); name the columns with "
            f"--{_NAME.question_column} and --{_NAME.response_column}, or give --{_NAME.format}"
        )
    return formats.most_common(1)[0][0]


def _format_of(row: Row, options: PrepareOptions) -> RawFormat | None:
    """The format and columns of one row; None if the row does not show them."""
    question = options.question_column
    response = options.response_column
    # The column of a generated response, which takes the place of the data set's answer in training.
    generated = None
    if response is None and options.format in ("auto", "teacher"):
        generated = first_filled(row, (RESPONSE_COLUMN, "response"))
    form = RawFormat(options.format, question, response or generated)
    if form.name == "teacher":
        return form._replace(response=form.response or RESPONSE_COLUMN)
    if form.name != "auto":
        return form
    messages = attempted(_chat_of, row, form)
    if isinstance(messages, RowError):
        return None
    if generated and not question:
        return form._replace(name="teacher")
    _, final = _split_final(messages[-1]["content"])
    is_gsm8k = final is not None and not question and not response and not chat_column(row)
    return form._replace(name="gsm8k" if is_gsm8k else "columns")


def _chat_of(row: Row, form: RawFormat) -> Messages:
    """The chat of a raw row; RowError if the row has none."""
    answer = form_of(row).answer
    if form.question:
        return row_to_messages(row, None, PairColumns(form.question, form.response or answer))
    # The response takes the place of the answer, so that the row's other columns (context, history) are still read.
    if form.response:
        value = column_value(row, form.response)
        if value is None:
            raise RowError("no_answer", absent(row, form.response))
        row = {**row, answer: value}
    return row_to_messages(row)


def read_example(row: object, form: RawFormat, options: PrepareOptions) -> RawExample:
    """Read the parts of one raw row.

    Raises:
        RowError: it is not a chat of one question and its answer, or one of the two is empty or too long.
    """
    row = as_object(row)
    system, *turn = one_turn(_chat_of(row, form))
    for name, text in zip(("question", "answer"), turn, strict=True):
        if len(text) > MAX_TEXT:
            raise RowError(
                "text_too_long",
                f"the {name} has {len(text):,} characters; at most {MAX_TEXT:,} are read",
            )
        if not text.strip():
            raise RowError("empty_text", f"the {name} is empty")
    question, answer = map(clean_lines, turn)
    response, final = _split_final(answer)
    if form.name == "gsm8k":
        if final is None:
            raise RowError(
                "no_final_answer",
                f"the answer does not end in a line '#### ...': it ends in {answer[-40:]!r}",
            )
        response = _CALCULATOR_MARK.sub("", response)
    # If the response is generated, the data set's own answer stays in its column.
    answer_column = form_of(row).answer
    if form.response not in (None, answer_column):
        answer = clean_lines(cell_text(row.get(answer_column))) or answer
    truth = cell_text(column_value(row, options.ground_truth_column or "ground_truth"))
    return RawExample(question.strip(), answer, truth.strip() or final, response, final, system)


def _split_final(text: str) -> tuple[str, str | None]:
    r"""A text without its last line ``#### 72``, and the text after the hashes; None without such a line.

    In a text with a ``\boxed{}``, ``####`` is a heading. Of several such lines the first has the answer, so a text with a
    different last one does not end in an answer. At the end of code, words after hashes are a comment.
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
    """Convert all line ends to line feeds, and drop blank lines at the start and white space at the end."""
    return blank_lines_off(text.replace("\r\n", "\n").replace("\r", "\n"))


def blank_lines_off(text: str) -> str:
    """Drop blank lines at the start and white space at the end; the first line keeps its indentation."""
    return _BLANK_LINES.sub("", text).rstrip()


# Steps


class Converter:
    """Prepares rows.

    Args:
        form: the rows' format and columns.

    Attributes:
        least: the smallest number of characters in a step.
    """

    def __init__(self, form: RawFormat, options: PrepareOptions):
        self._form = form
        self._options = options
        style = options.step_splitter
        usual = PUBLISHED_LENGTH
        # GSM8K's own answers have a step on each line, however short.
        if form.name == "gsm8k":
            style = "lines" if style == "auto" else style
            usual = 1
        self._splitter = make_splitter(style, options.step_separator)
        self._blank_lines = make_splitter("separator")
        self.least = usual if options.min_step_length is None else options.min_step_length

    def __call__(self, rows: Sequence[tuple[int, Any]]) -> list[tuple[int, Kept | RowError]]:
        """Prepare each row, and return its number with the prepared row or the error that skips it."""
        return [(number, attempted(self._prepared, row)) for number, row in rows]

    def _prepared(self, row: object) -> Kept:
        # The source yields the error of an unreadable row in its place.
        if isinstance(row, RowError):
            raise row
        options = self._options
        example = read_example(row, self._form, options)
        content, steps = self.steps_of(example)
        if len(steps) < options.min_steps:
            number = counted(len(steps), "step")
            raise RowError(
                "too_few_steps", f"{number} found (--{_NAME.min_step_length} is {self.least})"
            )
        messages = [
            {"role": "user", "content": example.question},
            {"role": "assistant", "content": content},
        ]
        system = example.system or options.system_prompt
        # The default system prompt asks for a box, which this answer does not have.
        if system == SYSTEM_PROMPT and "\\boxed" not in content and not example.system:
            system = None
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
        refuse_half_characters(line, "the row")
        data = f"{line.translate(_LINE_ENDS)}\n".encode()
        return Kept(data, question_key(example.question), len(steps))

    def steps_of(self, example: RawExample) -> tuple[str, list[str]]:
        """Return the answer to write, and its steps in order, with the final answer at the end of the last one.

        Raises:
            RowError: the response has only thinking.
        """
        texts = response_parts(example.response, self._options.keep_thinking)
        if self._form.name != "gsm8k" and any(map(holds_code, texts)):
            # Code must not change in any character: its steps are consecutive spans of it, and none is dropped.
            pieces = _cut(_JOIN.join(texts), self._splitter)
            fitting = fit_lengths(pieces, self.least, drop=False, glue="")
            stretches = _with_final(fitting, example.final)
            return "".join(stretches), [trimmed(step) for step in stretches]
        pieces = []
        for text in texts:
            for piece in _cut(text, self._splitter):
                # Blank lines inside a step would split it in training; those in code, maths and tables do not.
                paragraphs = _cut(trimmed(piece), self._blank_lines)
                pieces.append("\n".join(map(blank_lines_off, paragraphs)))
        fitting = fit_lengths(pieces, self.least, self._options.drop_short)
        # Joined pieces may split differently: everything after an unclosed code fence, for example, is one step.
        content = _JOIN.join(_with_final(fitting, example.final))
        steps = [trimmed(step) for step in _cut(content, self._blank_lines)]
        return _JOIN.join(steps), steps

    def _checked_truth(self, example: RawExample, content: str) -> str | None:
        """The ground truth; with ``require_correct``, it is checked against the response."""
        required = self._options.require_correct
        truth = example.ground_truth
        if truth is None:
            # The response cannot confirm itself.
            reference = None if example.answer == example.response else example.answer
            if reference is None and required:
                raise RowError(
                    "no_ground_truth",
                    f"only the response itself has a final answer; name a column with --{_NAME.ground_truth_column}",
                )
            truth = final_answer(reference or content)
        elif "####" in truth or "\\boxed" in truth:
            truth = final_answer(truth) or truth
        answer = final_answer(content) if required else truth
        if required and not answers_match(answer, truth):
            raise RowError(
                "wrong_answer",
                f"the response ends in {answer!r}, but the ground truth is {truth!r}",
            )
        return truth


def _with_final(steps: list[str], final: str | None) -> list[str]:
    """The steps with the final answer at the end of the last one."""
    if final is None:
        return steps
    written = f"\\boxed{{{final}}}"
    return [*steps[:-1], f"{steps[-1]}\n{written}"] if steps else [written]


def question_key(question: str) -> int:
    """Hash a question, without regard to letter case, white space and compatibility forms of characters."""
    text = " ".join(unicodedata.normalize("NFKC", question).casefold().split())
    # Python's own hash() differs in every process.
    digest = hashlib.blake2b(text.encode(), digest_size=KEY_BITS // 8).digest()
    return int.from_bytes(digest, "big")


def question_of(messages: Chat) -> str:
    """Return the question of a chat: all messages of the user."""
    return "\n".join([message["content"] for message in messages if message["role"] == "user"])


def response_parts(text: str, keep_thinking: bool) -> list[str]:
    """Return the response after its thinking; with `keep_thinking`, also the text inside and between thinking blocks.

    Raises:
        RowError: no text is left.
    """
    if not has_thinking(text):
        return [text]
    pieces = [answer_of(text)]
    if keep_thinking:
        thoughts = text_of(text).thoughts
        # The parts before, inside and between thinking blocks.
        places = [0, *(place for span in thoughts for place in span)]
        pieces = [text[start:end] for start, end in pairwise(places)] + pieces
    # In a piece with a code fence, the marks stay: they may belong to the code.
    parts = [blank_lines_off(piece if "```" in piece else MARK.sub("", piece)) for piece in pieces]
    parts = [part for part in parts if part]
    if not parts:
        raise RowError(
            "only_thinking",
            f"the response has only a thinking block; --{_NAME.keep_thinking} keeps it",
        )
    return parts


def trimmed(text: str) -> str:
    """Strip white space around a text; the first line keeps its indentation if the second line has some."""
    text = blank_lines_off(text)
    # Two indented lines may be code, where a change would break the block.
    below = text.partition("\n")[2]
    return text if below[:1].isspace() else text.strip()


def fit_lengths(pieces: Sequence[str], least: int, drop: bool, glue: str = "\n") -> list[str]:
    """Merge pieces until each has at least `least` characters; a wide character (Chinese, Japanese, Korean) counts as four,
    as it carries about as much as four letters.

    A short piece joins the next one if it is a heading or the first piece, else the one before it, with `glue` in between.
    With `drop`, it is dropped instead, unless it has the final answer.
    """
    fitting: list[str] = []
    # A short piece that waits for the next one.
    lead = ""
    for piece in pieces:
        if lead:
            piece, lead = f"{lead}{glue}{piece}", ""
        words = piece.strip()
        if _length(words) >= least:
            fitting.append(piece)
        elif drop and "\\boxed" not in piece and "####" not in piece:
            continue
        elif not fitting or _is_introduction(words):
            lead = piece
        else:
            fitting[-1] += f"{glue}{piece}"
    if lead and fitting:
        fitting[-1] += f"{glue}{lead}"
    elif lead:
        fitting.append(lead)
    return fitting


def _length(words: str) -> int:
    """Characters, with a wide one counted as four."""
    if words.isascii():
        return len(words)
    return len(words) + 3 * sum(unicodedata.east_asian_width(letter) in "WF" for letter in words)


def _is_introduction(words: str) -> bool:
    """Whether words are a heading, a rule or a title in bold, or end in a colon, and so belong to the text after them."""
    bold = words[:2] == words[-2:] == "**"
    return bold or words.startswith(("#", "---")) or words.rstrip("*_ ").endswith(":")


def _cut(text: str, splitter: StepSplitter) -> list[str]:
    return [text[start:end] for start, end in splitter.spans(text)]
