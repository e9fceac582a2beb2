"""What may be wrong with a data set, counted row by row while it is read; `check` warns of it.

Texts are not kept: questions are compared by hashes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from stepjepa.data.prepare.rows import question_key
from stepjepa.data.sources import RowSource
from stepjepa.data.steps import CharSpan, Text

LONG_STEP = 2000  # characters of a step that is called very long

# A last step that is nothing but the answer: "#### 72", "\boxed{72}", "$\boxed{72}$.", "**\boxed{72}**".
_ANSWER_LINE = re.compile(
    r"\s*(?:####\s*\S+|(?:\*\*)?(?:\$\$?|\\\[|\\\()?\s*\\boxed\{[^{}\n]{0,60}\}\s*(?:\$\$?|\\\]|\\\))?\.?(?:\*\*)?)\s*"
)


@dataclass
class QualityCounts:
    """Counts over the usable chats of a data set.

    Attributes:
        steps: of answers with two or more.
        one_word_steps, long_steps: those of them that are one word; that are longer than `LONG_STEP` characters.
        longest_step: characters.
        rows_with_answer_line: rows with an answer of several steps whose last one is the final answer alone.
        answer_line_second: those of them in which it is the second step, which ``step_pairs`` first predicts.
        rows_cut_in_thoughts, rows_cut_in_blocks: rows that a plain split at the separator would cut inside a thinking
            block; inside code, display maths or a table.
        rows_with_system: rows that begin with a system message of some text.
        rows_with_empty_answer: rows with an answer that is blank.
        first: name of one of the above -> place of the first such row (of the longest step; the first row without a
            system message under ``rows_without_system``).
    """

    steps: int = 0
    one_word_steps: int = 0
    long_steps: int = 0
    longest_step: int = 0
    rows_with_answer_line: int = 0
    answer_line_second: int = 0
    rows_cut_in_thoughts: int = 0
    rows_cut_in_blocks: int = 0
    rows_with_system: int = 0
    rows_with_empty_answer: int = 0
    first: dict[str, str] = field(default_factory=dict)

    def count(
        self, place: str, messages: Sequence[dict[str, str]], steps: Sequence[list[CharSpan]], separator: str
    ) -> None:
        """Count one chat.

        Args:
            steps: the spans of each answer's steps.
            separator: at which a plain split would cut.
        """
        answers = [message["content"] for message in messages if message["role"] == "assistant"]
        system = messages[0]["role"] == "system" and bool(messages[0]["content"].strip())
        several = [(answer, spans) for answer, spans in zip(answers, steps, strict=True) if len(spans) > 1]
        views = [(answer[start:end], end - start) for answer, spans in several for start, end in spans]
        closing = [len(spans) for answer, spans in several if _ANSWER_LINE.fullmatch(answer, *spans[-1])]
        cut = [cuts_inside(answer, separator) for answer in answers if separator in answer]
        self.steps += len(views)
        self.answer_line_second += 2 in closing
        for name, number in {
            "rows_with_system": system,
            "rows_with_empty_answer": not all(answer.strip() for answer in answers),
            "rows_with_answer_line": bool(closing),
            "rows_cut_in_thoughts": any(thoughts for thoughts, _ in cut),
            "rows_cut_in_blocks": any(blocks for _, blocks in cut),
            "one_word_steps": sum(len(text.split(None, 1)) == 1 for text, _ in views),
            "long_steps": sum(length > LONG_STEP for _, length in views),
        }.items():
            if number:
                setattr(self, name, getattr(self, name) + number)
                self.first.setdefault(name, place)
        if not system:
            self.first.setdefault("rows_without_system", place)
        longest = max((length for _, length in views), default=0)
        if longest > self.longest_step:
            self.longest_step, self.first["longest_step"] = longest, place


def cuts_inside(text: str, separator: str) -> tuple[bool, bool]:
    """Whether `separator` stands inside a thinking block, and whether inside code, display maths or a table."""
    source = Text(text)
    inside = [span for span in source.blocks if text.find(separator, *span) >= 0]
    return any(span in source.thoughts for span in inside), any(span not in source.thoughts for span in inside)


@dataclass
class Repeats:
    """Rows that ask what an earlier row asks (`prepare.rows.question_key`: letter case and white space aside).

    Attributes:
        rows: such rows.
        same_answer: those of them whose answer is that of an earlier row with this question, too.
        first: places of the first such row and of the one that it repeats.
    """

    rows: int = 0
    same_answer: int = 0
    first: tuple[str, str] | None = None
    _questions: dict[int, int] = field(default_factory=dict, repr=False)
    _whole: set[int] = field(default_factory=set, repr=False)

    def count(self, rows: RowSource, number: int, question: str, answer: str) -> None:
        """Count row `number` of `rows`; a blank question is no question."""
        if not question.strip():
            return
        key, whole = question_key(question), question_key(f"{question}\0{answer}")
        if key in self._questions:
            self.rows += 1
            self.same_answer += whole in self._whole
            self.first = self.first or (rows.place(self._questions[key]), rows.place(number))
        else:
            self._questions[key] = number
        self._whole.add(whole)

    def find(self, question: str) -> int | None:
        """The number of the first row with this question, None if there is none."""
        return self._questions.get(question_key(question)) if question.strip() else None

    def to_dict(self) -> dict[str, Any]:
        """A plain record for JSON."""
        return {"rows": self.rows, "same_answer": self.same_answer, "first": self.first}


@dataclass
class Leak:
    """Rows of an evaluation file whose question stands in the training file.

    Attributes:
        source: the evaluation file.
        rows, skipped: rows that were compared, and those that cannot be used.
        found: rows with a question of the training file.
        first: place of the first such row, and of the training row.
    """

    source: str
    rows: int = 0
    skipped: int = 0
    found: int = 0
    first: tuple[str, str] | None = None
