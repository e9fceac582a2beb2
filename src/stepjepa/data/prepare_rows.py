"""One raw row to one prepared row; what runs in the worker processes."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from stepjepa.data.chat import RowError
from stepjepa.data.lines import line_row, line_text
from stepjepa.data.prepare_formats import Example, Form, read_example
from stepjepa.data.prepare_options import AnswerRules, PrepareOptions
from stepjepa.data.prepare_steps import StepFinder
from stepjepa.data.steps import STEPS_COLUMN, TOTAL_COLUMN

LINE_BYTES = 16 * 2**20  # a longer line is counted as dropped; no chat has that much text
KEY_BITS = 64
_LINE_ENDS = {"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}
SHOWN_BYTES = 160  # of a dropped row


class Kept(NamedTuple):
    """A prepared row.

    Attributes:
        number: of the raw row in its source.
        line: what is written, with its line end.
        key: a hash of the question, `KEY_BITS` bits.
        steps: how many it has.
        short: pieces that were too short to be steps.
        boxed: whether an answer stands in a box.
        question: how it begins.
    """

    number: int
    line: bytes
    key: int
    steps: int
    short: int
    boxed: bool
    question: str


class Dropped(NamedTuple):
    """A raw row that is left out: its number in the source, a short reason, that in words, and how the row begins."""

    number: int
    reason: str
    what: str
    text: str


RawRow = tuple[int, Any]  # number; bytes of a line, an object with columns, or `Dropped` where it could not be read


def question_key(question: str) -> int:
    """A hash of the question, the same for other letter case, other spaces and other forms of the same characters."""
    if not question.isascii():
        question = unicodedata.normalize("NFKC", question)
    text = " ".join(question.casefold().split())
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=KEY_BITS // 8).digest(), "big")


class Converter:
    """Prepares rows.

    Args:
        form: the rows' format and columns.
        text_lines: whether the lines of bytes are text; JSON else.
        rules: how final answers are found and compared; without them only ``####`` lines and a ground-truth column count.

    Attributes:
        least: how long a step is at least.
    """

    def __init__(self, form: Form, options: PrepareOptions, text_lines: bool, rules: AnswerRules | None):
        self._form, self._options, self._text_lines, self._rules = form, options, text_lines, rules
        self._steps_of = StepFinder(form.format, options)
        self.least = self._steps_of.least

    def __call__(self, rows: Sequence[RawRow]) -> list[Kept | Dropped]:
        """One outcome a row, in order; blank lines have none."""
        outcomes: list[Kept | Dropped] = []
        for number, raw in rows:
            row: Any = None
            try:
                row = parse(raw, self._text_lines) if isinstance(raw, bytes) else raw
                if isinstance(row, Dropped):
                    outcomes.append(row)
                elif row is not None:
                    outcomes.append(self._prepared(number, row))
            except RowError as error:
                outcomes.append(
                    Dropped(number, error.reason, " ".join(str(error).split()), self._beginning(row or raw))
                )
        return outcomes

    def _prepared(self, number: int, row: Any) -> Kept:
        options = self._options
        example = read_example(row, self._form, options)
        steps, short = self._steps_of(example)
        if len(steps) < options.min_steps:
            more = "" if not short else f" ({len(steps) + short} with those below --min_step_length {self.least})"
            raise RowError("too_few_steps", f"{len(steps)} step{'s' * (len(steps) != 1)} found{more}")
        if options.max_steps is not None and len(steps) > options.max_steps:
            raise RowError("too_many_steps", f"{len(steps)} steps found")
        content = "\n\n".join(steps)
        truth = self._checked_truth(example, content)
        messages = [{"role": "user", "content": example.question}, {"role": "assistant", "content": content}]
        if options.system_prompt:
            messages.insert(0, {"role": "system", "content": options.system_prompt})
        prepared = {
            "question": example.question,
            "answer": example.answer,
            "ground_truth": truth,
            STEPS_COLUMN: steps,
            TOTAL_COLUMN: len(steps),
            "messages": messages,
        }
        try:
            line = _json_line(prepared).encode()
            key = question_key(example.question)
        except UnicodeEncodeError as error:
            half = f"\\u{ord(error.object[error.start]):04x}"
            raise RowError(
                "broken_text", f"a text holds {half} without its other half, which is no character"
            ) from None
        return Kept(number, line, key, len(steps), short, "\\boxed" in content, example.question[:SHOWN_BYTES])

    def _checked_truth(self, example: Example, content: str) -> str | None:
        """The ground truth; where it is asked for, checked against the response."""
        truth, rules = example.ground_truth, self._rules
        if rules is None:
            return truth
        if truth is None:
            own = example.answer if example.answer != example.response else None
            if own is None and self._options.require_correct:
                raise RowError("no_ground_truth", "nothing but the response itself says what the final answer is")
            truth = rules.find(content if own is None else own)
        elif "####" in truth or "\\boxed" in truth:
            truth = rules.find(truth) or truth
        if self._options.require_correct and not rules.match(found := rules.find(content), truth):
            raise RowError("wrong_answer", f"the response ends in {_short(found)}, the ground truth is {_short(truth)}")
        return truth

    def _beginning(self, raw: Any) -> str:
        if isinstance(raw, bytes):
            return raw[:SHOWN_BYTES].decode("utf-8", "replace").strip()
        question = raw.get(self._form.columns.question) if isinstance(raw, Mapping) else None
        return question[:SHOWN_BYTES] if isinstance(question, str) else str(raw)[:SHOWN_BYTES]


def parse(raw: bytes, text_lines: bool) -> Any:
    """The row that a line holds, None for a blank line.

    Raises:
        RowError: it cannot be read.
    """
    text = line_text(raw, LINE_BYTES)
    if not text:
        return None
    if text_lines:
        return text
    row = line_row(text, raw)
    if row is None:
        raise RowError("not_an_object", "the row is null, not an object with columns")
    return row


def _json_line(row: Mapping[str, Any]) -> str:
    """A row of JSON with its line end, readable in any language, and one line for whoever reads it.

    GSM8K itself holds line separators (U+2028), at which `str.splitlines` cuts.
    """
    line = json.dumps(row, ensure_ascii=False)
    if not line.isascii():
        for sign, escape in _LINE_ENDS.items():
            line = line.replace(sign, escape)
    return f"{line}\n"


def _short(text: str | None) -> str:
    if text is None:
        return "nothing"
    return repr(text if len(text) <= 40 else f"{text[:40]}...")
