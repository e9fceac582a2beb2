"""Predictions: a line for each question that was asked. How a file of them is read, what went wrong in it and of which kind
each error is, and how two files differ (``stepjepa evaluate --analyze``)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from stepjepa.config.option import Names
from stepjepa.data.answers import NUMBER, fold, number_of, plain_text
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
_OPTIONAL = ("note", "undecided", "answer_nll", "content_nll", "end_nll", "answer_tokens", "end_tokens", "sample")
_NUMBER = (int, float)
_TYPES: dict[str, tuple[type, ...]] = {
    "index": (int,),
    "tokens": (int,),
    "answer_tokens": (int,),
    "end_tokens": (int,),
    "correct": (bool,),
    NLL: _NUMBER,
}
# Kinds of errors; a wrong answer is of the first kind that fits.
KINDS = {
    "refused": "no room for the prompt",
    "empty": "nothing written",
    "repetition": "repeats itself to the end",
    "cut_off": f"cut off at {_NAME.max_new_tokens}",
    "no_answer": "no answer found",
    "undecided": "the metric could not decide",
    "invalid": "no valid expression or query",
    "elsewhere": "the right answer elsewhere in the text",
    "wrong": "another answer",
}
_TAIL = 4000  # characters at the end in which repetitions are looked for
_LOOP, _TURNS = 60, 4  # characters and turns from which on a repetition counts
_QUOTED, _QUESTION, _HEAD, _END = 80, 160, 80, 160  # characters of an answer, a question, a response's two ends


@dataclass
class Prediction:
    """What a model answered to one question, and what the metrics make of it.

    Attributes:
        index: the row's number in the data, from 0; rows that cannot be asked count too.
        question: the last message of the user.
        sample: number of the answer, from 1, where every question has several.
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
    sample: int | None = None

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


def read_predictions(path: Path, every_sample: bool = False) -> list[Prediction]:
    """Predictions of a file of JSON lines, or of one JSON array, of several to a question the first, or every one.

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
        values = {name: row[name] for name in names if row.get(name) is not None}
        if values.get("sample", 1) != 1 and not every_sample:
            continue
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
    if not isinstance(scores, dict) or any(type(one) not in (*_NUMBER, type(None)) for one in scores.values()):
        return f"scores is {scores!r}, not the number of each metric"
    return ""


@dataclass
class PredictionAnalysis:
    """One file of predictions; printed, a summary with examples.

    Attributes:
        metric: decides what is right; empty where the file does not name it.
        n, correct: predictions that are right or wrong, and those that are right.
        undecided: predictions that no metric calls right or wrong.
        accuracy: with its interval.
        cut_off: responses cut at max_new_tokens: among the right ones, among the wrong ones.
        lengths: mean length of the right and of the wrong responses, None without one.
        unit: of the lengths: tokens where they are recorded, else characters.
        kinds: kind of error -> wrong predictions.
        examples: kind -> the first such predictions.
    """

    file: str
    metric: str
    n: int
    correct: int
    undecided: int
    accuracy: Interval
    cut_off: dict[str, int]
    lengths: dict[str, float | None]
    unit: str
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
        by = f" by {self.metric}" if self.metric else ""
        yield f"  accuracy{by}: {self.accuracy.percent()}, 95 % interval in brackets"
        if self.undecided:
            yield f"  {self.undecided} answers are called neither right nor wrong, and are left out"
        if any(self.cut_off.values()):
            counts = f"{self.cut_off['right']} of the right answers, {self.cut_off['wrong']} of the wrong ones"
            yield f"  {KINDS['cut_off']}: {counts}"
        lengths = [f"{name} {length:.1f}" for name, length in self.lengths.items() if length is not None]
        yield f"  {self.unit} per response, mean: {', '.join(lengths)}"
        if self.kinds:
            yield "  kinds of errors, each wrong answer counted once:"
        for kind, count in self.kinds.items():
            yield f"    {count:>5}  {100 * count / wrong:5.1f} %  {KINDS[kind]}"
        for kind, examples in self.examples.items():
            if examples:
                yield f"\n{KINDS[kind]}:"
            for one in examples:
                note = f" ({one.note})" if one.note else ""
                yield from _asked(one)
                yield f"    found {_found(one)}{note}"


def _asked(one: Prediction) -> list[str]:
    """The question and the right answer."""
    return [
        f"  index {one.index}: {one_line(one.question, _QUESTION)}",
        f"    expected {quoted(one.gt_answer or one.ground_truth)}",
    ]


def _found(one: Prediction) -> str:
    """The answer, and the response's beginning and end where it is more than that."""
    line = " ".join(one.generated_response.split())
    if one.generated_response.strip() == (one.gen_answer or "").strip():
        return quoted(one.gen_answer)
    if len(line) > _HEAD + _END:
        line = f"{line[:_HEAD]} ... {line[-_END:]}"
    return f"{quoted(one.gen_answer)}: {line}"


@dataclass
class PredictionComparison:
    """Two models on the same questions; printed, the table with examples.

    Attributes:
        difference: accuracy of b less that of a, with its interval: a is the baseline.
        mcnemar_p: of McNemar's exact test.
        both, only_a, only_b, neither: of the two are right.
        examples: ``only_a`` and ``only_b`` -> the first questions, with the predictions of ``a`` and ``b``.
    """

    a: PredictionAnalysis
    b: PredictionAnalysis
    difference: Interval
    mcnemar_p: float
    both: int
    only_a: int
    only_b: int
    neither: int
    examples: dict[str, list[dict[str, Prediction]]]

    def record(self) -> dict[str, Any]:
        """As plain JSON values."""
        sides = {"a": self.a.record(), "b": self.b.record()}
        return {**asdict(self), **sides, "difference": self.difference._asdict()}

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        if self.a.metric:
            yield f"right is what {self.a.metric} calls right"
        yield f"A  {self.a.file}: {self.a.accuracy.percent()}"
        yield f"B  {self.b.file}: {self.b.accuracy.percent()}"
        difference = self.difference.percent("+", "points")
        yield f"B - A  {difference}, 95 % intervals in brackets; McNemar's exact test p = {self.mcnemar_p:.3g}"
        counts = self.both, self.only_a, self.only_b, self.neither
        yield from wrapped(conclusion(self.difference, "A", "B", counts=counts), PAGE)
        yield f"\n{'B right':>19}{'B wrong':>9}"
        yield f"  A right {self.both:>9}{self.only_a:>9}"
        yield f"  A wrong {self.only_b:>9}{self.neither:>9}"
        for name, examples in self.examples.items():
            if examples:
                yield f"\nonly {name[-1].upper()} is right:"
            for pair in examples:
                yield from _asked(pair["a"])
                yield f"    A {_found(pair['a'])}"
                yield f"    B {_found(pair['b'])}"
        yield ""
        for letter, analysis in (("A", self.a), ("B", self.b)):
            kinds = ", ".join(f"{KINDS[kind]} {count}" for kind, count in analysis.kinds.items()) or "none"
            yield f"errors of {letter}: {kinds}"


def analyze_predictions(path: Path, show: int = 2, metric: str | None = None) -> PredictionAnalysis:
    """Look into one file.

    Args:
        show: examples of each kind that are kept.
        metric: decides what is right; by default the first one of the evaluation.

    Raises:
        DataError: the file cannot be read, or holds no answers that are right or wrong.
    """
    return _analysis(path, _judged_by(path, read_predictions(path), metric), metric, show)


def compare(first: Path, second: Path, show: int = 2, metric: str | None = None) -> PredictionComparison:
    """Look at two models' answers to the same questions, matched by index and question.

    Args:
        first: the baseline.
        show, metric: as for `analyze_predictions`.

    Raises:
        DataError: a file cannot be read, or the questions or the metrics are not the same.
    """
    rows, others = read_predictions(first), read_predictions(second)
    own, other = _first_metric(rows), _first_metric(others)
    if metric is None and own != other:
        raise DataError(
            f"{first} goes by {own or 'no metric'}, {second} by {other or 'none'}; --{_NAME.metric} goes by one that both "
            f"have ({first} has {', '.join(rows[0].scores) or 'none'})"
        )
    rows = [one for one in _judged_by(first, rows, metric) if one.correct is not None]
    others = [one for one in _judged_by(second, others, metric) if one.correct is not None]
    a = _analysis(first, rows, metric, show)
    b = _analysis(second, others, metric, show)

    right: list[bool] = []
    other_right: list[bool] = []
    examples: dict[str, list[dict[str, Prediction]]] = {"only_a": [], "only_b": []}
    for one, one_of_b in _same_questions(first, second, rows, others):
        right.append(bool(one.correct))
        other_right.append(bool(one_of_b.correct))
        if right[-1] != other_right[-1]:
            examples["only_a" if one.correct else "only_b"].append({"a": one, "b": one_of_b})
    counts = paired_counts(right, other_right)
    difference = accuracy_difference(*counts)
    examples = {name: pairs[:show] for name, pairs in examples.items()}
    return PredictionComparison(a, b, difference, mcnemar_p(*counts[1:3]), *counts, examples)


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


def paired_metrics(first: Path, second: Path) -> list[PairedMetric]:
    """The metrics that two files of predictions share, ``answer_nll`` among them, paired by question.

    Raises:
        DataError: a file cannot be read, the questions are not the same, or no metric is in both.
    """
    rows = _same_questions(first, second, read_predictions(first), read_predictions(second))
    pairs = [(one.values(), other.values()) for one, other in rows]
    known: dict[str, None] = {}
    other_known: dict[str, None] = {}
    for values, other_values in pairs:
        known |= dict.fromkeys(values)
        other_known |= dict.fromkeys(other_values)
    shared = [name for name in known if name in other_known]
    if not shared:
        names = f"{first} has {', '.join(known) or 'none'}, {second} {', '.join(other_known) or 'none'}"
        raise DataError(f"no metric in both: {names}; evaluate both with the same metric")
    metrics = []
    for name in shared:
        both = [(a[name], b[name]) for a, b in pairs if name in a and name in b]
        counts = None
        difference = mean([b - a for a, b in both])
        if all(value in (0.0, 1.0) for pair in both for value in pair):
            counts = paired_counts([a == 1.0 for a, _ in both], [b == 1.0 for _, b in both])
            difference = accuracy_difference(*counts)
        metrics.append(PairedMetric(name, difference, len(both), counts))
    return metrics


def _same_questions(
    first: Path, second: Path, rows: Sequence[Prediction], others: Sequence[Prediction]
) -> list[tuple[Prediction, Prediction]]:
    """The predictions of both files for each question; raises DataError where the questions are not the same."""
    by_index = {one.index: one for one in rows}
    other_by_index = {one.index: one for one in others}
    for path, predictions, indices in ((first, rows, by_index), (second, others, other_by_index)):
        if len(predictions) != len(indices):
            raise DataError(f"{path}: an index occurs twice")
    alone = by_index.keys() ^ other_by_index.keys()
    if alone:
        raise DataError(
            f"index {min(alone)} is in one of {first} and {second} alone ({len(alone)} such rows): evaluate both on the "
            "same rows"
        )
    pairs = [(one, other_by_index[index]) for index, one in by_index.items()]
    for one, other in pairs:
        if one.question != other.question:
            raise DataError(
                f"{first} and {second} ask different questions at index {one.index}: evaluate both on the same file"
            )
    return pairs


def _analysis(path: Path, predictions: Sequence[Prediction], metric: str | None, show: int) -> PredictionAnalysis:
    right = [one for one in predictions if one.correct]
    wrong = [one for one in predictions if one.correct is False]
    n = len(right) + len(wrong)
    if not n:
        raise DataError(
            f"{path}: no prediction is called right or wrong (`correct`); evaluate with a metric such as gsm8k or exact"
        )
    kinds: dict[str, list[Prediction]] = {kind: [] for kind in KINDS}
    for one in wrong:
        kinds[error_kind(one)].append(one)
    in_tokens = all(one.tokens is not None for one in (*right, *wrong))
    cut_off, lengths = {}, {}
    for name, group in (("right", right), ("wrong", wrong)):
        cut_off[name] = sum(one.stop_reason == CUT for one in group)
        sizes = [one.tokens or 0 if in_tokens else len(one.generated_response) for one in group]
        lengths[name] = fmean(sizes) if sizes else None
    return PredictionAnalysis(
        file=str(path),
        metric=metric or _first_metric(predictions),
        n=n,
        correct=len(right),
        undecided=len(predictions) - n,
        accuracy=share(len(right), n),
        cut_off=cut_off,
        lengths=lengths,
        unit="tokens" if in_tokens else "characters",
        kinds={kind: len(group) for kind, group in kinds.items() if group},
        examples={kind: group[:show] for kind, group in kinds.items() if group},
    )


def _first_metric(predictions: Sequence[Prediction]) -> str:
    """The metric that ``correct`` is of; empty where that is not known."""
    return next(iter(predictions[0].scores), "")


def _judged_by(path: Path, predictions: Sequence[Prediction], metric: str | None) -> list[Prediction]:
    """The predictions with the verdict of `metric` in ``correct``; as they are for None."""
    if metric is None:
        return list(predictions)
    for one in predictions:
        if one.scores.get(metric) not in (0.0, 1.0):
            known = ", ".join(predictions[0].scores) or "none"
            raise DataError(f"{path}: index {one.index} has no {metric} of 0 or 1 (metrics found: {known})")
    return [replace(one, correct=one.scores[metric] == 1.0) for one in predictions]


def error_kind(one: Prediction) -> str:
    """The kind of a wrong prediction, a key of `KINDS`."""
    text = one.generated_response.strip()
    if one.stop_reason == REFUSED:
        return "refused"
    if not text:
        return "empty"
    if repeats(text):
        return "repetition"
    if one.stop_reason == CUT:
        return "cut_off"
    if one.gen_answer is None:
        return "no_answer"
    if one.undecided is not None:
        return "undecided" if one.undecided == "unknown" else "invalid"
    gold = (one.gt_answer or one.ground_truth).strip()
    if one.gen_answer.strip() == text:  # the metric reads all of the response
        return "elsewhere" if gold and gold in text else "wrong"
    return "elsewhere" if _holds(text, gold) else "wrong"


def repeats(text: str) -> bool:
    """Whether a text ends in a part of it that is repeated again and again.

    The last `_LOOP` characters or more must be `_TURNS` turns or more of one part: they stay the same when they are moved on
    by its length.
    """
    tail = text[-_TAIL:]
    sizes = ((turn, max(_LOOP, _TURNS * turn)) for turn in range(1, len(tail) // _TURNS + 1))
    return len(tail) >= _LOOP and any(tail.endswith(tail[-size:-turn]) for turn, size in sizes)


def _holds(text: str, answer: str) -> bool:
    """Whether a text holds an answer: as a number that it writes, or else in its words."""
    number = number_of(answer)
    if number is not None:
        return any(number_of(found[0]) == number for line in fold(text).splitlines() for found in NUMBER.finditer(line))
    words = " ".join(plain_text(answer).casefold().split())
    return len(words) > 1 and words in " ".join(plain_text(text).casefold().split())
