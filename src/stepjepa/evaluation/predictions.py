"""Predictions: a line for each question that was asked. How a file of them is read, what went wrong in it and of which kind
each error is, and how two files differ (``stepjepa evaluate --analyze``)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from stepjepa.config.option import Names
from stepjepa.data.sources import RowSource
from stepjepa.errors import DataError
from stepjepa.evaluation.metrics import NLL
from stepjepa.evaluation.options import EvaluateOptions
from stepjepa.evaluation.statistics import (
    Interval,
    accuracy_difference,
    conclusion,
    mcnemar_p,
    mean,
    paired_counts,
    share,
)
from stepjepa.generation.output import json_line
from stepjepa.utils.files import json_bytes
from stepjepa.utils.text import PAGE, one_line, wrapped

_NAME = Names(EvaluateOptions)
STOPPED, CUT, REFUSED = "stop", "length", "refused"
LIKELIHOOD = ("answer_nll", "content_nll", "end_nll", "answer_tokens", "end_tokens")
_OPTIONAL = ("note", "undecided", "drafts", *LIKELIHOOD)
_TYPES: dict[str, tuple[type, ...]] = {"index": (int,), "correct": (bool,), NLL: (int, float)}
# Kinds of errors; a wrong answer is of the first kind that fits.
KINDS = {
    "refused": "no room for the prompt",
    "empty": "nothing written",
    "cut_off": f"cut off at {_NAME.max_new_tokens}",
    "no_answer": "no answer found",
    "unknown": "the metric could not decide",
    "invalid": "no valid expression or query",
    "elsewhere": "the right answer elsewhere in the text",
    "wrong": "another answer",
}
_QUOTED, _SHOWN = 80, 200  # characters of an answer, and of a question or a response


@dataclass
class Prediction:
    """What a model answered to one question, and what the metrics make of it.

    Attributes:
        index: the row's number in the data, from 0; rows that cannot be asked count too.
        question: the last message of the user.
        ground_truth: the column `ground_truth`, else the text of the reference answer.
        generated_response: what the model wrote.
        gt_answer, gen_answer: the answers as the first metric read them from the reference and from the response.
        correct: whether the first metric calls the response right; None where that is no yes-or-no metric.
        stop_reason: ``stop`` (the model ended by itself), ``length`` (cut off), ``refused`` (no room for the prompt).
        tokens: new tokens, the one that ends the response included.
        scores: metric -> score.
        note: why the first metric's score is not 1.
        undecided: see `Judgement.undecided`, of the first metric.
        answer_nll: nats per token of the reference answer, where that was computed; of `answer_tokens` tokens.
        drafts: see `Drafts`; None where nothing was drafted.
        content_nll, end_nll: the same of its tokens without the end of turn, and of the end of turn (`end_tokens` tokens).
    """

    index: int
    question: str
    ground_truth: str = ""
    generated_response: str = ""
    gt_answer: str | None = None
    gen_answer: str | None = None
    correct: bool | None = None
    stop_reason: str | None = None
    tokens: int | None = None
    scores: dict[str, float] = field(default_factory=dict)
    note: str | None = None
    undecided: Literal["unknown", "invalid"] | None = None
    answer_nll: float | None = None
    content_nll: float | None = None
    end_nll: float | None = None
    answer_tokens: int | None = None
    end_tokens: int | None = None
    drafts: Sequence[int] | None = None

    def record(self) -> dict[str, Any]:
        """As it is written."""
        return {name: value for name, value in asdict(self).items() if value is not None or name not in _OPTIONAL}

    def values(self) -> dict[str, float]:
        """Metric -> value, ``answer_nll`` among them; the verdict where its metric is not named, as in files of others."""
        values = dict(self.scores)
        if not values and self.correct is not None:
            values["correct"] = float(self.correct)
        if self.answer_nll is not None:
            values[NLL] = self.answer_nll
        return values


def quoted(text: str | None) -> str:
    """A text in quotation marks, on one short line; none where there is none."""
    return "none" if text is None else repr(one_line(text, _QUOTED))


def record_lines(path: Path, records: Iterable[dict[str, Any]]) -> Iterable[bytes]:
    """Records as the contents of a file: JSONL, or one array for a ``.json`` file."""
    if path.suffix == ".json":
        return [json_bytes(list(records), indent=1), b"\n"]
    return map(json_line, records)


def read_predictions(path: Path) -> list[Prediction]:
    """Predictions of a file of JSON lines, or of one JSON array; where version 0.3 has several to a question, the first.

    Only ``question`` and ``generated_response``, or ``answer_nll``, must be there; `index` is then the position in the file.

    Raises:
        DataError: the file cannot be read, or a row is no prediction.
    """
    if not path.is_file():
        raise DataError(f"{path}: {'is a folder; give the predictions in it' if path.is_dir() else 'no such file'}")
    rows = RowSource(path)
    names = [one.name for one in fields(Prediction)]
    predictions: list[Prediction] = []
    for number, row in rows:
        problem = _problem_of(row)
        if problem:
            raise DataError(f"{rows.place(number)}: is no prediction: {problem}")
        if row.get("sample", 1) != 1:
            continue
        values = {name: row[name] for name in names if row.get(name) is not None}
        values.setdefault("index", len(predictions))
        for name in {"gt_answer", "gen_answer", "ground_truth"} & values.keys():
            values[name] = str(values[name])
        scores = values.get("scores", {})
        values["scores"] = {name: math.nan if score is None else score for name, score in scores.items()}
        predictions.append(Prediction(**values))
    if not predictions:
        raise DataError(f"{path}: holds no predictions")
    return predictions


def _problem_of(row: Any) -> str:
    """Why a row is no prediction; empty where it is one."""
    if not isinstance(row, dict):
        return "expected an object as stepjepa evaluate writes it"
    answered = "generated_response" in row or NLL not in row
    for name in ("question", "generated_response") if answered else ("question",):
        if not isinstance(row.get(name), str):
            return f"it has no text {name!r}"
    for name, types in _TYPES.items():
        if row.get(name) is not None and type(row[name]) not in types:
            return f"{name} is {row[name]!r}"
    scores = row.get("scores", {})
    if not isinstance(scores, dict) or any(type(one) not in (int, float, type(None)) for one in scores.values()):
        return f"scores is {scores!r}, not the number of each metric"
    return ""


@dataclass
class PredictionAnalysis:
    """One file of predictions; printed, a summary with examples.

    Attributes:
        metric: decides what is right.
        n, correct: predictions, and those that are right.
        accuracy: with its interval.
        kinds: kind of error -> wrong predictions.
        examples: kind -> the first such predictions.
    """

    file: str
    metric: str
    n: int
    correct: int
    accuracy: Interval
    kinds: dict[str, int]
    examples: dict[str, list[Prediction]]

    def record(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {**asdict(self), "accuracy": self.accuracy._asdict()}

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        wrong = self.n - self.correct
        yield f"{self.file}: {self.n} answers, {self.correct} right, {wrong} wrong"
        yield f"  accuracy by {self.metric}: {self.accuracy.percent()}, 95 % interval in brackets"
        if self.kinds:
            yield "  kinds of errors, each wrong answer counted once:"
        for kind, count in self.kinds.items():
            yield f"    {count:>5}  {100 * count / wrong:5.1f} %  {KINDS[kind]}"
        for kind, examples in self.examples.items():
            if examples:
                yield f"\n{KINDS[kind]}:"
            for one in examples:
                note = f" ({one.note})" if one.note else ""
                yield from _question_lines(one)
                yield f"    found {_answer_text(one)}{note}"


def _question_lines(one: Prediction) -> list[str]:
    """The question and the right answer."""
    return [
        f"  index {one.index}: {one_line(one.question, _SHOWN)}",
        f"    expected {quoted(one.gt_answer or one.ground_truth)}",
    ]


def _answer_text(one: Prediction) -> str:
    """The answer, and the response where it is more than that."""
    if one.generated_response.strip() == (one.gen_answer or "").strip():
        return quoted(one.gen_answer)
    return f"{quoted(one.gen_answer)}: {one_line(one.generated_response, _SHOWN)}"


@dataclass(frozen=True)
class PairedMetric:
    """Two models in one metric, question by question.

    Attributes:
        difference: the second model's mean less the first one's; of ``answer_nll`` lower is better.
        n: questions that both have a value for.
        counts: as `paired_counts` gives them; None for a metric that does not say right or wrong.
    """

    metric: str
    difference: Interval
    n: int
    counts: tuple[int, int, int, int] | None = None


@dataclass
class PredictionComparison:
    """Two models on the same questions; printed, the table with examples.

    Attributes:
        a, b: the files; a is the baseline.
        paired: the metric that decides what is right.
        counts: how many questions both, only a, only b, or neither answered right.
        examples: ``only_a`` and ``only_b`` -> the first questions, with the predictions of ``a`` and ``b``.
    """

    a: str
    b: str
    paired: PairedMetric
    counts: tuple[int, int, int, int]
    examples: dict[str, list[dict[str, Prediction]]]

    def record(self) -> dict[str, Any]:
        """As plain JSON values."""
        counts = dict(zip(("both", "only_a", "only_b", "neither"), self.counts, strict=True))
        difference = self.paired.difference._asdict()
        return {**asdict(self), **counts, "paired": {"metric": self.paired.metric, "difference": difference}}

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        both, only_a, only_b, neither = self.counts
        difference = self.paired.difference
        yield f"right is what {self.paired.metric} calls right"
        yield f"A  {self.a}: {share(both + only_a, self.paired.n).percent()}"
        yield f"B  {self.b}: {share(both + only_b, self.paired.n).percent()}"
        p = mcnemar_p(only_a, only_b)
        points = difference.percent("+", "points")
        yield f"B - A  {points}, 95 % intervals in brackets; McNemar's exact test p = {p:.3g}"
        yield from wrapped(conclusion(difference, "A", "B", counts=self.counts), PAGE)
        yield f"\n{'B right':>19}{'B wrong':>9}"
        yield f"  A right {both:>9}{only_a:>9}"
        yield f"  A wrong {only_b:>9}{neither:>9}"
        for name, examples in self.examples.items():
            if examples:
                yield f"\nonly {name[-1].upper()} is right:"
            for pair in examples:
                yield from _question_lines(pair["a"])
                yield f"    A {_answer_text(pair['a'])}"
                yield f"    B {_answer_text(pair['b'])}"


def analyze_predictions(path: Path, show: int = 2, metric: str | None = None) -> PredictionAnalysis:
    """Look into one file.

    Args:
        show: examples of each kind that are kept.
        metric: decides what is right; by default the first one of the evaluation.

    Raises:
        DataError: the file cannot be read, or the metric does not call every answer right or wrong.
    """
    predictions = read_predictions(path)
    first = predictions[0].values()
    metric = metric or next(iter(first), "correct")
    kinds: dict[str, list[Prediction]] = {kind: [] for kind in KINDS}
    right = 0
    for one in predictions:
        value = one.values().get(metric)
        if value not in (0.0, 1.0):
            where = f"{path}: index {one.index}"
            raise DataError(f"{where} has no {metric} of 0 or 1 (metrics found: {_listed(first)})")
        if value == 1.0:
            right += 1
        else:
            kinds[error_kind(one)].append(one)
    n = len(predictions)
    counts = {kind: len(group) for kind, group in kinds.items() if group}
    examples = {kind: kinds[kind][:show] for kind in counts}
    return PredictionAnalysis(str(path), metric, n, right, share(right, n), counts, examples)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def compare(first: Path, second: Path, show: int = 2, metric: str | None = None) -> PredictionComparison:
    """Look at two models' answers to the same questions, matched by index and question.

    Args:
        first: the baseline.
        show: as for `analyze_predictions`.
        metric: decides what is right; by default the first one of the baseline.

    Raises:
        DataError: a file cannot be read, or the questions or the metrics are not the same.
    """
    pairs = _same_questions(first, second)
    a, b = pairs[0]
    metric = metric or next(iter(a.values()), "correct")
    paired = _paired_metric(metric, pairs)
    if paired.counts is None or paired.n < len(pairs):
        known = f"{_listed(a.values())} and {_listed(b.values())}"
        raise DataError(f"{first} and {second} have no {metric} of 0 or 1 for every question (metrics found: {known})")
    examples: dict[str, list[dict[str, Prediction]]] = {"only_a": [], "only_b": []}
    for one, other in pairs:
        right = one.values()[metric]
        if right == other.values()[metric]:
            continue
        group = examples["only_a" if right else "only_b"]
        if len(group) < show:
            group.append({"a": one, "b": other})
    return PredictionComparison(str(first), str(second), paired, paired.counts, examples)


def paired_metrics(first: Path, second: Path) -> list[PairedMetric]:
    """The metrics that two files of predictions share, ``answer_nll`` among them, paired by question.

    Raises:
        DataError: a file cannot be read, the questions are not the same, or no metric is in both.
    """
    pairs = _same_questions(first, second)
    known: dict[str, None] = {}
    other_known: dict[str, None] = {}
    for one, other in pairs:
        known |= dict.fromkeys(one.values())
        other_known |= dict.fromkeys(other.values())
    shared = [name for name in known if name in other_known]
    if not shared:
        names = f"{first} has {_listed(known)}, {second} {_listed(other_known)}"
        raise DataError(f"no metric in both: {names}; evaluate both with the same metric")
    return [_paired_metric(name, pairs) for name in shared]


def _paired_metric(name: str, pairs: Sequence[tuple[Prediction, Prediction]]) -> PairedMetric:
    values: list[float] = []
    other_values: list[float] = []
    for one, other in pairs:
        a = one.values().get(name)
        b = other.values().get(name)
        if a is not None and b is not None:
            values.append(a)
            other_values.append(b)
    n = len(values)
    if n and set(values + other_values) <= {0.0, 1.0}:
        counts = paired_counts([a == 1.0 for a in values], [b == 1.0 for b in other_values])
        return PairedMetric(name, accuracy_difference(*counts), n, counts)
    differences = [b - a for a, b in zip(values, other_values, strict=True)]
    return PairedMetric(name, mean(differences), n)


def _same_questions(first: Path, second: Path) -> list[tuple[Prediction, Prediction]]:
    """The predictions of both files for each question; raises DataError where the questions are not the same."""
    sides = []
    for path in (first, second):
        predictions = read_predictions(path)
        sides.append({one.index: one for one in predictions})
        if len(predictions) != len(sides[-1]):
            raise DataError(f"{path}: an index occurs twice")
    alone = sides[0].keys() ^ sides[1].keys()
    if alone:
        raise DataError(f"index {min(alone)} is in one of {first} and {second} alone: evaluate both on the same rows")
    pairs = [(one, sides[1][index]) for index, one in sides[0].items()]
    for one, other in pairs:
        if one.question != other.question:
            raise DataError(f"{first} and {second} ask different questions at index {one.index}")
    return pairs


def error_kind(one: Prediction) -> str:
    """The kind of a wrong prediction, a key of `KINDS`."""
    text = one.generated_response.strip()
    if one.stop_reason == REFUSED:
        return "refused"
    if not text:
        return "empty"
    if one.stop_reason == CUT:
        return "cut_off"
    if one.gen_answer is None:
        return "no_answer"
    if one.undecided in KINDS:
        return one.undecided
    right = re.escape((one.gt_answer or one.ground_truth).strip())
    return "elsewhere" if right and re.search(rf"(?<!\w){right}(?!\w)", text, re.IGNORECASE) else "wrong"
