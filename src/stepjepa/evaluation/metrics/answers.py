r"""`exact`, `prefix` and `contains` compare texts; `stopped` and `text_after` test how a response ends; `gsm8k`, `math` and
`multiple_choice` extract the answer from a text and compare only the answer; `task` and `first_step` check answers to the
built-in tasks.

math-verify parses LaTeX with a grammar and compares with SymPy. It runs in a separate process, because SymPy can compute
forever (`9^{9^{9^9}}`). Its parser for plain expressions is not used, because that parser passes text to `eval`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar

from stepjepa.config.option import option
from stepjepa.data.answers import (
    answers_match,
    final_answer,
    fold,
    last_boxed,
    plain_text,
)
from stepjepa.data.blocks import answer_of
from stepjepa.data.tasks import task_class
from stepjepa.errors import ConfigError, DataError, library
from stepjepa.evaluation.metrics.base import OPTIONS, Judgement, Metric, Row, verdict
from stepjepa.evaluation.metrics.worker import Worker, WorkerError

# Maximum number of characters passed to math-verify: of an answer, or of the end of a text that it searches for formulas.
_LONGEST = 2_000


@dataclass(kw_only=True)
class Exact(Metric):
    """The generated text equals the reference, apart from surrounding white space."""

    name = "exact"
    why_wrong: ClassVar[str] = "a different text"

    def score(self, generated: str, row: Row) -> Judgement:
        """1 if the text is right."""
        gold, answer = self.pair(generated, row)
        return verdict(self.is_right(answer, gold), gold, answer, self.why_wrong)

    def is_right(self, answer: str, gold: str) -> bool:
        """Whether the text is right."""
        return answer == gold


@dataclass(kw_only=True)
class Prefix(Exact):
    """The generated text begins with the reference: the published `--startswith`.

    In the published code the stripped response must start with the assistant message, character by character. The rest does
    not matter, so `[a-z]+` is right for the reference `[a-z]`. Here the reference is stripped too: otherwise no response
    could match a reference that ends in white space.
    """

    name = "prefix"
    why_wrong = "begins differently"

    def is_right(self, answer: str, gold: str) -> bool:
        """Whether the text begins with the reference."""
        return answer.startswith(gold)


@dataclass(kw_only=True)
class Contains(Exact):
    """The reference occurs in the generated text, character by character, whatever else the text contains.

    `exact` also requires that the model stops there. A longer wrong answer that contains the reference counts as right.
    """

    name = "contains"
    why_wrong = "the reference does not occur"

    def is_right(self, answer: str, gold: str) -> bool:
        """Whether the reference occurs in the text."""
        return gold in answer


@dataclass(kw_only=True)
class Stopped(Metric):
    """The model ended its response by itself, before `max_new_tokens`; needs no reference."""

    name = "stopped"

    def score(self, generated: str, row: Row) -> Judgement:
        """Always 0: a text alone does not show how it ended, see `score_response`."""
        return self.score_response(generated, row, stopped=False)

    def score_response(self, generated: str, row: Row, stopped: bool) -> Judgement:
        """1 if the model ended the response."""
        return Judgement(float(stopped), None, generated.strip(), "" if stopped else "cut off")


@dataclass(kw_only=True)
class TextAfter(Metric):
    """Number of characters after the first occurrence of the reference in the generated text.

    A text without the reference does not count. `max_new_tokens` bounds the value.
    """

    name = "text_after"
    kind = "count"
    higher_is_better = False

    def score(self, generated: str, row: Row) -> Judgement:
        """The number of characters; NaN if the reference does not occur."""
        gold, answer = self.pair(generated, row)
        _, occurs, after = answer.partition(gold)
        if not occurs:
            return Judgement(math.nan, gold, answer, "the reference does not occur")
        return Judgement(
            float(len(after)), gold, answer, "text after the reference" if after else ""
        )


@dataclass(kw_only=True)
class TaskAnswer(Metric):
    """Whether an answer to a row of a built-in task is right, by the rule of `stepjepa.data.tasks`."""

    name = "task"
    # Name of a method of the task.
    rule = "solves"

    def score(self, generated: str, row: Row) -> Judgement:
        """1 if the answer is right. Raises DataError: the row does not belong to a built-in task."""
        gold, answer = self.pair(generated, row)
        # A task trusts the columns that it wrote itself; rows of a user's file may lack them or have other types.
        try:
            right = getattr(task_class(row["task"]), self.rule)(row, answer)
        except (KeyError, ConfigError, TypeError, ValueError) as error:
            what = f"{type(error).__name__}: {error}"
            raise DataError(
                f"the row is not in the form that built-in tasks write, see stepjepa.data.tasks ({what})"
            ) from None
        return verdict(right, gold, answer, "wrong")


@dataclass(kw_only=True)
class FirstStep(TaskAnswer):
    """Whether the first step of an answer is right: in a path-star graph it is the only decision."""

    name = "first_step"
    rule = "begins"


@dataclass(kw_only=True)
class FinalAnswer(Metric):
    r"""Compares final answers by the rules of `stepjepa.data.answers`.

    The answer of a generated text is its last `\boxed{}`, else the text after the first `####`, else the text in its last
    `<answer>` tags, else the number after "the answer is", else its last number. The reference is the column
    `ground_truth`, else the final answer in `answer` or in the chat's last message; a short line without marks is itself a
    final answer.
    """

    name = "gsm8k"
    columns: ClassVar[tuple[str, ...]] = ("ground_truth", "answer", "completion", "messages")
    # Longest line, in characters, that is itself a final answer.
    longest_bare = 80

    def score(self, generated: str, row: Row) -> Judgement:
        """1 if the final answers match."""
        gold, answer = self.final_reference(row), final_answer(generated)
        if gold is None:
            return Judgement(0.0, None, answer, "the reference has no final answer")
        if answer is None:
            return Judgement(0.0, gold, None, "no answer found")
        return verdict(answers_match(answer, gold), gold, answer, "a different answer")

    def final_reference(self, row: Row) -> str | None:
        """The final answer in the reference; None if the reference has none. Raises DataError: the row has no reference."""
        reference = self.reference(row).strip()
        if (
            "####" in reference
            or "boxed" in reference
            or "\n" in reference
            or len(reference) > self.longest_bare
        ):
            return final_answer(reference)
        return reference


@dataclass(kw_only=True)
class MathAnswer(FinalAnswer):
    r"""Compares final answers as mathematics: `\frac{1}{\sqrt{2}}` equals `\frac{\sqrt{2}}{2}`, `(x+1)^2` equals `x^2+2x+1`.

    The answer of a generated text is its last `\boxed{}`, else its last formula between dollar signs or in `\( \)`, else its
    final answer by the rules of `gsm8k`. The reference is in the column `ground_truth`, `answer` or `solution`, boxed or
    bare. If both are the same text or number by our own rules, math-verify is not called.
    """

    time_limit: float = option(
        5.0, "Seconds for one row; an answer that takes longer counts as wrong.", OPTIONS, above=0
    )

    name = "math"
    columns = ("ground_truth", "answer", "solution", "completion", "messages")
    longest_bare = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        # Only the worker imports it, which takes seconds.
        if find_spec("math_verify") is None:
            library("math_verify", "math")
        self._worker = Worker(same_value, imports="math_verify")

    def score(self, generated: str, row: Row) -> Judgement:
        """1 if the answers are equal."""
        generated = answer_of(generated)
        judgement = super().score(generated, row)
        gold, answer = judgement.gold, judgement.answer
        # The text that math-verify parses: the whole box; or the end of the text, from which it takes the last formula; or
        # the final answer, put into a box.
        source = last_boxed(generated)
        if source is None and any(mark in generated for mark in ("$", "\\(", "\\[")):
            source = generated[-_LONGEST:]
        elif answer is not None:
            source = _boxed(answer)
        if gold is None or source is None or judgement.score == 1.0:
            return judgement
        if max(len(gold), len(source)) > _LONGEST:
            return Judgement(0.0, gold, answer, f"longer than {_LONGEST} characters")
        try:
            equal, parsed = self._worker.call(self.time_limit, gold=_boxed(gold), answer=source)
        except WorkerError as error:
            return Judgement(0.0, gold, answer, f"not decided: {error}", "unknown")
        return verdict(equal, gold, parsed or answer, "a different answer")


def _boxed(answer: str) -> str:
    return f"\\boxed{{{answer.strip().strip('$')}}}"


def same_value(gold: str, answer: str) -> tuple[bool, str]:
    """Whether math-verify finds two LaTeX texts equal, and the answer it extracted from the second. Runs in the worker."""
    import logging

    from math_verify import LatexExtractionConfig, parse, verify

    # math-verify warns that its time limit is off. That limit needs signals, and the worker has a time limit already.
    logging.disable(logging.CRITICAL)
    config = [LatexExtractionConfig(boxed_match_priority=0)]
    parsed_gold, parsed_answer = (
        parse(text, config, parsing_timeout=None) for text in (gold, answer)
    )
    equal = bool(verify(parsed_gold, parsed_answer, timeout_seconds=None))
    # A parse result holds SymPy objects and the text that they were read from.
    return equal, next((part for part in parsed_answer if isinstance(part, str)), "")


_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
# What may stand before a letter: brackets, quotation marks, bold type, \text{, and a word such as "option".
_OPEN = r"[(\[{*_\s\"'`$]{0,6}(?:\\text\{\s*)?(?:(?:option|choice|letter)\b\s*)?[(\[*\"'`]{0,4}"
# The text after "the answer is".
_SAYS = re.compile(
    r"\b(?:answer|choice|option)\b[^.\n]{0,40}?(?:\b(?:is|are|be)\b:?|[:=])[ \t]*([^\n]{1,300})",
    re.IGNORECASE,
)
# A letter at its beginning, except the article ("a prime number").
_LABEL = re.compile(rf"(?i:{_OPEN})(?!a\s+[a-z])([A-Za-z])(?![A-Za-z0-9'\u2019])")
# A letter or number at the beginning of a response, followed by a mark or the end of the line: "B.", "(B)".
_FIRST = re.compile(rf"(?i:{_OPEN})([A-Za-z]|\d{{1,2}})(?:[)\].:*\"'`,}}]|\s*$|\s*\n)")
# A capital letter anywhere that is a whole word; A, which may be the article, needs a mark after it.
_LONE = re.compile(
    r"(?<![\w'\u2019.])(?:\(([A-Za-z])\)|([B-Z])(?![\w'\u2019])|(A)(?=[).:*\]]|\s*$))", re.MULTILINE
)


@dataclass(kw_only=True)
class MultipleChoice(Metric):
    r"""Compares the chosen option.

    The reference is a letter (`B`, `(B)`), the text of an option, or its number, counted from 0, if the row lists options; a
    longer reference is parsed like a generated text. Options are the row's `choices`, `options` or `endings`: a list of
    texts, or an object with `text` and `label` (ARC).

    The choice in a generated text is the letter in its last `\boxed{}`, else after the last "answer is", else at the
    beginning (`B.`, `(B)`), else the option whose text equals the response, else the last letter that stands alone.
    """

    name = "multiple_choice"
    columns = ("answerKey", "ground_truth", "label", "answer", "completion", "messages")

    def score(self, generated: str, row: Row) -> Judgement:
        """1 if the same option is chosen."""
        options = _options(row)
        gold = _reference_label(self.reference(row), options)
        answer = _chosen(answer_of(generated), options)
        if gold is None:
            return Judgement(0.0, None, answer, "the reference names no option")
        if answer is None:
            return Judgement(0.0, gold, None, "no option named")
        return verdict(answer == gold, gold, answer, "a different option")


def _reference_label(reference: str, options: Mapping[str, str]) -> str | None:
    label = plain_text(reference)
    if label.upper() in options:
        return label.upper()
    # After the labels, because ARC labels some options 1 to 4.
    if options and label.isdecimal():
        return dict(enumerate(options)).get(int(label))
    return _chosen(reference, options)


def _options(row: Row) -> dict[str, str]:
    """Label -> text of the row's options; empty if the row lists none.

    Raises:
        DataError: labels and texts do not match.
    """
    listed: Any = []
    for name in ("choices", "options", "endings"):
        listed = listed or row.get(name) or []
    labels: Any = _LETTERS[: len(listed)]
    if isinstance(listed, Mapping):
        labels, listed = listed.get("label"), listed.get("text")
    if not isinstance(listed, (list, tuple)) or labels is None or len(labels) != len(listed):
        raise DataError(
            "the options of a row must be a list of texts, or an object with `text` and `label` of equal length"
        )
    names = [str(label).strip().upper() for label in labels]
    texts = map(str, listed)
    return dict(zip(names, texts, strict=True))


def _chosen(text: str, options: Mapping[str, str]) -> str | None:
    """The label that a text chooses; in a box or after "answer is", a label that the row does not list is a wrong choice."""
    text = fold(text).strip()
    # The most explicit form decides, even if its label does not exist.
    boxed = last_boxed(text)
    if boxed is not None:
        return _label(_LABEL, boxed) or _by_text(boxed, options)
    # The last statement counts: a model may correct itself.
    for statement in reversed(_SAYS.findall(text)):
        label = _label(_LABEL, statement) or _by_text(statement, options)
        if label is not None:
            return label
    first = _label(_FIRST, text)
    if first is not None and (first in options or not options):
        return first
    by_text = _by_text(text, options)
    if by_text is not None:
        return by_text
    # Without a list of options, letters after J are more likely variables than labels.
    lone_letters = ["".join(groups).upper() for groups in _LONE.findall(text)]
    listed = [label for label in lone_letters if label in (options or _LETTERS[:10])]
    return listed[-1] if listed else None


def _label(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.match(text)
    return None if match is None else match[1].upper()


def _by_text(text: str, options: Mapping[str, str]) -> str | None:
    """The label of the only option whose text or label equals `text`; None if there is no such option, or more than one."""
    wanted, *texts = (
        " ".join(plain_text(raw).casefold().split()) for raw in (text, *options.values())
    )
    if wanted.upper() in options:
        return wanted.upper()
    labels = [label for label, option in zip(options, texts, strict=True) if option == wanted]
    return labels[0] if len(labels) == 1 else None
