"""Reads files of predictions, one line per question, classifies the wrong ones, and compares two files
(``stepjepa evaluate --analyze``)."""

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
from stepjepa.evaluation.metrics.base import NLL
from stepjepa.evaluation.options import EvaluateOptions
from stepjepa.evaluation.statistics import (
    Interval,
    PairedCounts,
    accuracy_difference,
    conclusion,
    mcnemar_p,
    mean,
    paired_counts,
    share,
)
from stepjepa.utils.files import Record, json_bytes, json_line
from stepjepa.utils.text import one_line

_NAME = Names(EvaluateOptions)
# Values of `Prediction.stop_reason`; the first two are those of OpenAI's API.
STOPPED, CUT, REFUSED = "stop", "length", "refused"
# Fields that only an evaluation with likelihoods fills.
LIKELIHOOD = ("answer_nll", "content_nll", "end_nll", "answer_tokens", "end_tokens")
# Fields that are left out of a line when they are None.
_OPTIONAL = ("note", "undecided", "drafts", *LIKELIHOOD)
_TYPES: dict[str, type] = {"index": int, "correct": bool}
# Largest score; the statistics of larger numbers would overflow.
_LARGEST = 1e100
# Kinds of errors, in the order in which `error_kind` tests them: a wrong answer is of the first kind that fits.
KINDS = {
    "refused": "prompt too long",
    "empty": "empty response",
    "cut_off": f"cut off at {_NAME.max_new_tokens}",
    "no_answer": "no answer found",
    "unknown": "the metric could not decide",
    "invalid": "no valid expression or query",
    "elsewhere": "the right answer elsewhere in the text",
    "wrong": "a different answer",
}
# Longest answer, and longest question or response, on the terminal, in characters.
_QUOTED, _SHOWN = 80, 200


@dataclass
class Prediction:
    """A model's response to one question, and its scores.

    Attributes:
        index: the row's number in the data, from 0; skipped rows count too.
        question: the user's last message.
        ground_truth: the column `ground_truth`, else the text of the reference answer.
        generated_response: the text that the model generated.
        gt_answer, gen_answer: the answers that the first metric extracted from the reference and from the response.
        correct: whether the response is right by the first metric; None if that metric is not binary.
        stop_reason: ``stop`` (the model ended the response itself), ``length`` (cut off), ``refused`` (the prompt is too
            long).
        tokens: number of new tokens, including the one that ends the response.
        scores: metric -> score.
        note: why the first metric's score is not 1.
        undecided: `Judgement.undecided` of the first metric.
        answer_nll: nats per token of the reference answer, over its `answer_tokens` tokens; None if not computed.
        content_nll, end_nll: the same over its tokens without the end of turn, and over the end of turn (`end_tokens`).
        drafts: see `Drafts`; None if nothing was drafted.
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

    def record(self) -> Record:
        """The prediction as a line of a file, in plain JSON values."""
        return {
            name: value
            for name, value in asdict(self).items()
            if value is not None or name not in _OPTIONAL
        }

    def values(self) -> dict[str, float]:
        """Metric -> value, including ``answer_nll``."""
        values = dict(self.scores)
        # Files of other programs may have a verdict but no named metric.
        if not values and self.correct is not None:
            values["correct"] = float(self.correct)
        if self.answer_nll is not None:
            values[NLL] = self.answer_nll
        return values


def quoted(text: str | None) -> str:
    """A text in quotation marks, shortened to one line; the word none for None."""
    return "none" if text is None else repr(one_line(text, _QUOTED))


def record_lines(path: Path, records: Iterable[Record]) -> Iterable[bytes]:
    """Records as lines of a JSONL file, or as one array for a ``.json`` file."""
    if path.suffix == ".json":
        return [json_bytes(list(records), indent=1), b"\n"]
    return map(json_line, records)


def read_predictions(path: Path) -> list[Prediction]:
    """Read a file of JSON lines, or of one JSON array.

    A row needs ``question``, and ``generated_response`` or ``answer_nll``. The default of ``index`` is the row's position.

    Raises:
        DataError: the file cannot be read, or a row is not a prediction.
    """
    if not path.is_file():
        raise DataError(
            f"{path}: {'is a folder; give the file of predictions in it' if path.is_dir() else 'no such file'}"
        )
    rows = RowSource(path)
    names = [attribute.name for attribute in fields(Prediction)]
    predictions: list[Prediction] = []
    for number, row in rows:
        problem = _problem_of(row)
        if problem:
            raise DataError(f"{rows.place(number)}: is not a prediction: {problem}")
        values = {name: row[name] for name in names if row.get(name) is not None}
        values.setdefault("index", len(predictions))
        for name in {"gt_answer", "gen_answer", "ground_truth"} & values.keys():
            values[name] = str(values[name])
        # JSON has no NaN, so NaN was written as null.
        scores = values.get("scores", {})
        values["scores"] = {
            name: math.nan if score is None else score for name, score in scores.items()
        }
        predictions.append(Prediction(**values))
    if not predictions:
        raise DataError(f"{path}: contains no predictions")
    return predictions


def _problem_of(row: Any) -> str:
    """Why a row is not a prediction; empty if it is one."""
    if not isinstance(row, dict):
        return "expected an object in the form that stepjepa evaluate writes"
    answered = "generated_response" in row or NLL not in row
    for name in ("question", "generated_response") if answered else ("question",):
        if not isinstance(row.get(name), str):
            return f"it has no text {name!r}"
    # Types are compared exactly, because bool is a subclass of int.
    for name, kind in _TYPES.items():
        if row.get(name) is not None and type(row[name]) is not kind:
            return f"{name} is {row[name]!r}"
    if not _is_score(row.get(NLL)):
        return f"{NLL} is {row[NLL]!r}"
    scores = row.get("scores", {})
    if not isinstance(scores, dict) or not all(map(_is_score, scores.values())):
        return (
            f"scores is {scores!r}, not an object with a number up to {_LARGEST:g} for each metric"
        )
    return ""


def _is_score(value: Any) -> bool:
    return value is None or type(value) in (int, float) and not abs(value) > _LARGEST


@dataclass
class PredictionAnalysis:
    """Summary of a file of predictions; ``str()`` gives the printed text.

    Attributes:
        metric: the metric that decides which answers are right.
        n, correct: number of predictions, and of right predictions.
        accuracy: the share of right predictions, with its interval.
        kinds: kind of error -> number of wrong predictions.
        examples: kind of error -> the first predictions of that kind.
    """

    file: str
    metric: str
    n: int
    correct: int
    accuracy: Interval
    kinds: dict[str, int]
    examples: dict[str, list[Prediction]]

    def record(self) -> Record:
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
            for example in examples:
                note = f" ({example.note})" if example.note else ""
                yield f"  index {example.index}: {one_line(example.question, _SHOWN)}"
                yield f"    expected {quoted(example.gt_answer or example.ground_truth)}"
                yield f"    found {quoted(example.gen_answer)}{note}"
                yield f"    response {one_line(example.generated_response, _SHOWN)}"


@dataclass(frozen=True)
class PairedMetric:
    """Two models compared by one metric on the same questions.

    Attributes:
        difference: the second model's mean minus the first model's; for ``answer_nll`` lower is better.
        n: number of questions for which both models have a value.
        counts: None unless all values are 0 or 1.
    """

    metric: str
    difference: Interval
    n: int
    counts: PairedCounts | None = None


@dataclass
class PredictionComparison:
    """Two models on the same questions; ``str()`` gives the printed text.

    Attributes:
        a, b: the files; a is the baseline.
        paired: the comparison by the metric that decides which answers are right.
        counts: number of questions that both, only a, only b, or neither answered right.
    """

    a: str
    b: str
    paired: PairedMetric
    counts: PairedCounts

    def record(self) -> Record:
        """As plain JSON values."""
        difference = self.paired.difference._asdict()
        return {
            **asdict(self),
            **self.counts._asdict(),
            "paired": {"metric": self.paired.metric, "difference": difference},
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        both, only_a, only_b, neither = self.counts
        difference = self.paired.difference
        # The accuracies with their intervals, then the paired difference, which the two intervals do not show.
        yield f"answers are judged by {self.paired.metric}"
        yield f"A  {self.a}: {share(both + only_a, self.paired.n).percent()}"
        yield f"B  {self.b}: {share(both + only_b, self.paired.n).percent()}"
        p = mcnemar_p(only_a, only_b)
        points = difference.percent("+", "points")
        yield f"B - A  {points}, 95 % intervals in brackets; McNemar's exact test p = {p:.3g}"
        yield conclusion(difference, "A", "B", counts=self.counts)
        # McNemar's table: only the two cells off the diagonal enter the test.
        yield f"\n{'B right':>19}{'B wrong':>9}"
        yield f"  A right {both:>9}{only_a:>9}"
        yield f"  A wrong {only_b:>9}{neither:>9}"


def analyze_predictions(path: Path, show: int = 2, metric: str | None = None) -> PredictionAnalysis:
    """Count the errors in a file by kind.

    Args:
        show: number of examples of each kind.
        metric: the metric that decides which answers are right; by default the first in the file.

    Raises:
        DataError: the file cannot be read, or an answer has no 0 or 1 for the metric.
    """
    predictions = read_predictions(path)
    first = predictions[0].values()
    metric = metric or next(iter(first), "correct")
    kinds: dict[str, list[Prediction]] = {kind: [] for kind in KINDS}
    for prediction in predictions:
        value = prediction.values().get(metric)
        if value not in (0.0, 1.0):
            where = f"{path}: index {prediction.index}"
            raise DataError(f"{where} has no {metric} of 0 or 1 (metrics found: {_listed(first)})")
        if value == 0.0:
            kinds[error_kind(prediction)].append(prediction)
    counts = {kind: len(group) for kind, group in kinds.items() if group}
    examples = {kind: kinds[kind][:show] for kind in counts}
    n = len(predictions)
    right = n - sum(counts.values())
    return PredictionAnalysis(str(path), metric, n, right, share(right, n), counts, examples)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def compare(first: Path, second: Path, metric: str | None = None) -> PredictionComparison:
    """Compare two models' answers to the same questions, matched by index and question.

    Args:
        first: file of the baseline.
        metric: the metric that decides which answers are right; by default the first in the baseline's file.

    Raises:
        DataError: a file cannot be read, or the questions or the metrics differ.
    """
    pairs = _same_questions(first, second)
    a, b = pairs[0]
    metric = metric or next(iter(a.values()), "correct")
    paired = _paired_metric(metric, pairs)
    if paired.counts is None or paired.n < len(pairs):
        known = f"{_listed(a.values())} and {_listed(b.values())}"
        raise DataError(
            f"{first} and {second} have no {metric} of 0 or 1 for every question (metrics found: {known})"
        )
    return PredictionComparison(str(first), str(second), paired, paired.counts)


def paired_metrics(first: Path, second: Path) -> list[PairedMetric]:
    """Pair two files by question, for each metric that is in both, including ``answer_nll``.

    Raises:
        DataError: a file cannot be read, the questions differ, or no metric is in both.
    """
    pairs = _same_questions(first, second)
    # Dictionaries serve as ordered sets: the first metric of an evaluation comes first in every table.
    metrics_a: dict[str, None] = {}
    metrics_b: dict[str, None] = {}
    for a, b in pairs:
        metrics_a |= dict.fromkeys(a.values())
        metrics_b |= dict.fromkeys(b.values())
    shared = [name for name in metrics_a if name in metrics_b]
    if not shared:
        names = f"{first} has {_listed(metrics_a)}, {second} has {_listed(metrics_b)}"
        raise DataError(f"the files share no metric: {names}; evaluate both with the same metric")
    return [_paired_metric(name, pairs) for name in shared]


def _paired_metric(name: str, pairs: Sequence[tuple[Prediction, Prediction]]) -> PairedMetric:
    # A question for which one model has no value is left out: a row that the likelihood skipped, or NaN.
    values_a: list[float] = []
    values_b: list[float] = []
    for prediction_a, prediction_b in pairs:
        a = prediction_a.values().get(name, math.nan)
        b = prediction_b.values().get(name, math.nan)
        if not math.isnan(b - a):
            values_a.append(a)
            values_b.append(b)
    n = len(values_a)
    # A metric whose values are all 0 or 1 is tested as a share, whatever kind its class declares.
    if n and set(values_a + values_b) <= {0.0, 1.0}:
        counts = paired_counts([a == 1.0 for a in values_a], [b == 1.0 for b in values_b])
        return PairedMetric(name, accuracy_difference(*counts), n, counts)
    differences = [b - a for a, b in zip(values_a, values_b, strict=True)]
    return PairedMetric(name, mean(differences), n)


def _same_questions(first: Path, second: Path) -> list[tuple[Prediction, Prediction]]:
    """The two predictions for each question. Raises DataError: the questions differ."""
    sides = []
    for path in (first, second):
        predictions = read_predictions(path)
        sides.append({prediction.index: prediction for prediction in predictions})
        if len(predictions) != len(sides[-1]):
            raise DataError(f"{path}: an index occurs twice")
    # The shared questions alone are not compared, because which questions are missing may depend on the model.
    unpaired = sides[0].keys() ^ sides[1].keys()
    if unpaired:
        raise DataError(
            f"index {min(unpaired)} is in only one of {first} and {second}: evaluate both on the same rows"
        )
    pairs = [(prediction, sides[1][index]) for index, prediction in sides[0].items()]
    for a, b in pairs:
        if a.question != b.question:
            raise DataError(f"{first} and {second} ask different questions at index {a.index}")
    return pairs


def error_kind(prediction: Prediction) -> str:
    """The kind of a wrong prediction, a key of `KINDS`."""
    text = prediction.generated_response.strip()
    if prediction.stop_reason == REFUSED:
        return "refused"
    if not text:
        return "empty"
    if prediction.stop_reason == CUT:
        return "cut_off"
    if prediction.gen_answer is None:
        return "no_answer"
    if prediction.undecided in KINDS:
        return prediction.undecided
    # As a whole word: the reference 4 does not occur in 42.
    right = re.escape((prediction.gt_answer or prediction.ground_truth).strip())
    return (
        "elsewhere"
        if right and re.search(rf"(?<!\w){right}(?!\w)", text, re.IGNORECASE)
        else "wrong"
    )
