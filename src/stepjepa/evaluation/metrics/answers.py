r"""`exact`, `prefix` and `contains` compare texts; `stopped` and `text_after` look at how a response ends;
`gsm8k`, `math` and `multiple_choice` find the answer in a text, and compare that alone; `task` and `first_step` check
answers to the built-in tasks.

math-verify reads LaTeX with a grammar and compares with SymPy. It runs in a process of its own, because SymPy can compute
for ever (`9^{9^{9^9}}`), and reads LaTeX only: its reader of plain expressions is left out, as that hands text to `eval`.
"""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from stepjepa.config.option import option
from stepjepa.data.answers import answers_match, final_answer, fold, last_boxed, number_of, plain_text
from stepjepa.data.blocks import answer_of
from stepjepa.data.tasks import TASKS, task_class
from stepjepa.errors import ConfigError, DataError
from stepjepa.evaluation.metrics import OPTIONS, Judgement, Metric, verdict
from stepjepa.evaluation.metrics.worker import Worker, WorkerError

_LONGEST = 2_000  # characters for math-verify: of an answer, or of the end of a text in which it looks for formulas


@dataclass(kw_only=True)
class Exact(Metric):
    """The generated text is the reference, but for white space around both."""

    name = "exact"
    why_wrong: ClassVar[str] = "another text"

    def score(self, generated: str, row: Mapping[str, Any]) -> Judgement:
        """1 where the text is right."""
        gold, answer = self.pair(generated, row)
        return verdict(self.is_right(answer, gold), gold, answer, self.why_wrong)

    def is_right(self, answer: str, gold: str) -> bool:
        """Whether the text is right."""
        return answer == gold


@dataclass(kw_only=True)
class Prefix(Exact):
    """The generated text begins with the reference: the published `--startswith`.

    Published: the response is stripped and must start with the assistant message, character by character. What follows does
    not count, so `[a-z]+` is right for the reference `[a-z]`. White space around the reference is stripped here too; as
    published, a reference that ends in some could never be matched.
    """

    name = "prefix"
    why_wrong = "begins otherwise"

    def is_right(self, answer: str, gold: str) -> bool:
        """Whether the text begins with the reference."""
        return answer.startswith(gold)


@dataclass(kw_only=True)
class Contains(Exact):
    """The reference occurs in the generated text, character by character: what the model knows, however the text goes on.

    `exact` also asks that the model stops there. The reference may occur within a longer wrong answer, which counts here.
    """

    name = "contains"
    why_wrong = "the reference does not occur"

    def is_right(self, answer: str, gold: str) -> bool:
        """Whether the reference occurs in the text."""
        return gold in answer


@dataclass(kw_only=True)
class Stopped(Metric):
    """The model ended its response by itself, before `max_new_tokens`; no reference is read."""

    name = "stopped"

    def score(self, generated: str, row: Mapping[str, Any]) -> Judgement:
        """0: nothing shows that this text was ended by a model, see `score_response`."""
        return self.score_response(generated, row, stopped=False)

    def score_response(self, generated: str, row: Mapping[str, Any], stopped: bool) -> Judgement:
        """1 where the response was ended by the model."""
        return Judgement(float(stopped), None, generated.strip(), "" if stopped else "cut off")


@dataclass(kw_only=True)
class TextAfter(Metric):
    """Characters after the first occurrence of the reference in the generated text; 0 where the text ends there.

    A text that does not contain the reference does not count. `max_new_tokens` bounds it.
    """

    name = "text_after"
    kind = "count"
    higher_is_better = False

    def score(self, generated: str, row: Mapping[str, Any]) -> Judgement:
        """The number of characters, NaN without the reference."""
        gold, answer = self.pair(generated, row)
        _, occurs, after = answer.partition(gold)
        if not occurs:
            return Judgement(math.nan, gold, answer, "the reference does not occur")
        return Judgement(float(len(after)), gold, answer, "text after the reference" if after else "")


@dataclass(kw_only=True)
class TaskAnswer(Metric):
    """Whether an answer to a row of a built-in task is right, by the rule of `stepjepa.data.tasks`."""

    name = "task"
    rule = "solves"  # a method of the task

    def score(self, generated: str, row: Mapping[str, Any]) -> Judgement:
        """1 where the answer is right. Raises DataError: the row is of no built-in task."""
        gold, answer = self.pair(generated, row)
        try:
            right = getattr(task_class(row["task"]), self.rule)(row, answer)
        except (KeyError, ConfigError, TypeError, ValueError) as error:
            what = f"{type(error).__name__}: {error}"
            raise DataError(f"the row is not as a built-in task writes it, see stepjepa.data.tasks ({what})") from None
        return verdict(right, gold, answer, "wrong")


@dataclass(kw_only=True)
class FirstStep(TaskAnswer):
    """Whether the first step of such an answer is right: in a path-star graph, the only decision."""

    name = "first_step"
    rule = "begins"


@dataclass(kw_only=True)
class FinalAnswer(Metric):
    r"""Compares final answers by the rules of `stepjepa.data.answers`.

    The generated text's answer is its last `\boxed{}`, else what follows the first `####`, else the number after "the
    answer is", else its last number. The row's is its column `ground_truth`, else the final answer of `answer` or of the
    chat's last message; a short line without marks is one already.
    """

    name = "gsm8k"
    columns: ClassVar[tuple[str, ...]] = ("ground_truth", "answer", "completion", "messages")
    longest_bare = 80  # characters of a line that is an answer as it is

    def score(self, generated: str, row: Mapping[str, Any]) -> Judgement:
        """1 where the final answers match."""
        gold, answer = self.known(row), final_answer(generated)
        if gold is None:
            return Judgement(0.0, None, answer, "the reference has no final answer")
        if answer is None:
            return Judgement(0.0, gold, None, "no answer found")
        return verdict(answers_match(answer, gold), gold, answer, "another answer")

    def known(self, row: Mapping[str, Any]) -> str | None:
        """The final answer of the reference. Raises DataError: the row holds none."""
        bare = self.reference(row).strip()
        if "####" in bare or "boxed" in bare or "\n" in bare or len(bare) > self.longest_bare:
            return final_answer(bare)
        return bare


def fitting_metric(row: Mapping[str, Any]) -> str:
    """The name of the metric for answers like a row's: by the task that it is of, or by a final answer that it marks."""
    if row.get("task") in TASKS:
        return TaskAnswer.name
    metric = FinalAnswer()
    try:
        reference, answer = metric.reference(row), metric.known(row)
    except DataError:
        return Exact.name
    marked = "ground_truth" in row or "####" in reference or last_boxed(reference) is not None
    if answer is None or not marked:
        return Exact.name
    return FinalAnswer.name if number_of(answer) is not None else MathAnswer.name


@dataclass(kw_only=True)
class MathAnswer(FinalAnswer):
    r"""Compares final answers as mathematics: `\frac{1}{\sqrt{2}}` is `\frac{\sqrt{2}}{2}`, `(x+1)^2` is `x^2+2x+1`.

    The generated text's answer is its last `\boxed{}`, else its last formula between dollar signs or in `\( \)`, else its
    final answer as `gsm8k` finds it. The row's is in its column `ground_truth`, `answer` or `solution`, boxed or bare.
    Answers that are the same text or number by our own rules are right without asking math-verify.
    """

    time_limit: float = option(5.0, "Seconds for one row; an answer that takes longer is wrong.", OPTIONS, above=0)

    name = "math"
    columns = ("ground_truth", "answer", "solution", "completion", "messages")
    longest_bare = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        if importlib.util.find_spec("math_verify") is None:
            raise ConfigError("the metric math needs the package math-verify: pip install 'stepjepa[math]'")
        self._worker = Worker(same_value, imports="math_verify")

    def score(self, generated: str, row: Mapping[str, Any]) -> Judgement:
        """1 where the answers are equal."""
        generated = answer_of(generated)
        gold, answer = self.known(row), final_answer(generated)
        source = last_boxed(generated)
        if source is None and any(mark in generated for mark in ("$", "\\(", "\\[")):
            source = generated[-_LONGEST:]
        elif answer is not None:
            source = _boxed(answer)
        if gold is None:
            return Judgement(0.0, None, answer, "the reference has no final answer")
        if source is None:
            return Judgement(0.0, gold, None, "no answer found")
        if answer is not None and _plainly_same(gold, answer):
            return Judgement(1.0, gold, answer)
        if max(len(gold), len(source)) > _LONGEST:
            return Judgement(0.0, gold, answer, f"longer than {_LONGEST} characters")
        try:
            same, read = self._worker.call(self.time_limit, gold=_boxed(gold), answer=source)
        except WorkerError as error:
            return Judgement(0.0, gold, answer, f"not decided: {error}", "unknown")
        return verdict(same, gold, read or answer, "another answer")


def _boxed(answer: str) -> str:
    return f"\\boxed{{{answer.strip().strip('$')}}}"


def _plainly_same(gold: str, answer: str) -> bool:
    """Whether two answers are the same characters, or the same number written without letters (`5m` may be a product)."""
    one, other = plain_text(gold), plain_text(answer)
    if one == other:
        return one != ""
    if any(map(str.isalpha, one + other)) or "%" in one + other:
        return False
    number = number_of(gold)
    return number is not None and number == number_of(answer)


def same_value(gold: str, answer: str) -> tuple[bool, str]:
    """Whether math-verify finds two LaTeX texts equal, and what it reads in the second. For `MathAnswer`'s process."""
    import logging

    from math_verify import LatexExtractionConfig, parse, verify

    logging.disable(logging.CRITICAL)  # it warns that its own time limit is off
    config = [LatexExtractionConfig(boxed_match_priority=0)]
    read = [parse(text, config, parsing_timeout=None) for text in (gold, answer)]
    return bool(verify(*read, timeout_seconds=None)), next((one for one in read[1] if isinstance(one, str)), "")


_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_OPEN = r"[(\[{*_\s\"'`$]{0,6}(?:\\text\{\s*)?(?:(?:option|choice|letter)\b\s*)?[(\[*\"'`]{0,4}"
# What follows "the answer is"; a letter there, unless it is the article; a letter with which a text begins; a lone one.
_SAYS = re.compile(
    r"\b(?:answer|choice|option)\b[^.\n]{0,40}?(?:\b(?:is|are|be)\b:?|[:=])[ \t]*([^\n]{1,300})", re.IGNORECASE
)
_LABEL = re.compile(rf"(?i:{_OPEN})(?!a\s+[a-z])([A-Za-z])(?![A-Za-z0-9'\u2019])")
_FIRST = re.compile(rf"(?i:{_OPEN})([A-Za-z]|\d{{1,2}})(?:[)\].:*\"'`,}}]|\s*$|\s*\n)")
_LONE = re.compile(r"(?<![\w'\u2019.])(?:\(([A-Za-z])\)|([B-Z])(?![\w'\u2019])|(A)(?=[).:*\]]|\s*$))", re.MULTILINE)


@dataclass(kw_only=True)
class MultipleChoice(Metric):
    r"""Compares the chosen option.

    The reference is a letter (`B`, `(B)`), the text of an option, or its number counted from 0 where the row has `choices`;
    a reference that is a longer text is read like a generated one. Options are the row's `choices`, `options` or `endings`:
    a list of texts, or an object with `text` and `label` (ARC).

    The generated text's choice is the letter in its last `\boxed{}`, else after the last "answer is", else the letter with
    which it begins (`B.`, `(B)`), else the option whose text it is, else the last letter that is alone.
    """

    name = "multiple_choice"
    columns = ("answerKey", "ground_truth", "label", "answer", "completion", "messages")

    def score(self, generated: str, row: Mapping[str, Any]) -> Judgement:
        """1 where the same option is chosen."""
        options = _options(row)
        gold = _reference_label(self.reference(row), options)
        answer = _chosen(answer_of(generated), options)
        if gold is None:
            return Judgement(0.0, None, answer, "the reference names no option")
        if answer is None:
            return Judgement(0.0, gold, None, "no option named")
        return verdict(answer == gold, gold, answer, "another option")


def _reference_label(reference: str, options: Mapping[str, str]) -> str | None:
    label = plain_text(reference)
    if label.upper() in options:
        return label.upper()
    if options and label.isdecimal():
        return dict(enumerate(options)).get(int(label))
    return _chosen(reference, options)


def _options(row: Mapping[str, Any]) -> dict[str, str]:
    """Label -> text of the row's options; empty where it lists none.

    Raises:
        DataError: labels and texts do not go together.
    """
    listed: Any = []
    for name in ("choices", "options", "endings"):
        listed = listed or row.get(name) or []
    labels: Any = _LETTERS[: len(listed)]
    if isinstance(listed, Mapping):
        labels, listed = listed.get("label"), listed.get("text")
    if not isinstance(listed, (list, tuple)) or labels is None or len(labels) != len(listed):
        raise DataError(
            "the options of a row must be a list of texts, or an object with `text` and `label` of one length"
        )
    names = [str(label).strip().upper() for label in labels]
    texts = map(str, listed)
    return dict(zip(names, texts, strict=True))


def _chosen(text: str, options: Mapping[str, str]) -> str | None:
    """The label that a text chooses; one that the row does not list counts as a choice, a wrong one."""
    text = fold(text).strip()
    boxed = last_boxed(text)
    if boxed is not None:
        return _label(_LABEL, boxed) or _by_text(boxed, options)
    for said in reversed(_SAYS.findall(text)):
        label = _label(_LABEL, said) or _by_text(said, options)
        if label is not None:
            return label
    first = _label(_FIRST, text)
    if first is not None and (first in options or not options):
        return first
    by_text = _by_text(text, options)
    if by_text is not None:
        return by_text
    alone = ["".join(groups).upper() for groups in _LONE.findall(text)]
    listed = [label for label in alone if label in (options or _LETTERS[:10])]
    return listed[-1] if listed else None


def _label(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.match(text)
    return None if match is None else match[1].upper()


def _by_text(text: str, options: Mapping[str, str]) -> str | None:
    """The one option whose text, or label, this is."""
    wanted, *texts = (" ".join(plain_text(one).casefold().split()) for one in (text, *options.values()))
    if wanted.upper() in options:
        return wanted.upper()
    same = [label for label, option in zip(options, texts, strict=True) if option == wanted]
    return same[0] if len(same) == 1 else None
