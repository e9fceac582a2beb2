"""What went wrong in a file of predictions, of which kind each error is, and how two files differ (``stepjepa evaluate
--analyze``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from stepjepa.config.option import Names
from stepjepa.data.answers import NUMBER, fold, number_of, plain_text
from stepjepa.errors import DataError
from stepjepa.evaluation.metrics import NLL
from stepjepa.evaluation.options import EvaluateOptions
from stepjepa.evaluation.predictions import CUT, REFUSED, Prediction, quoted, read_predictions
from stepjepa.evaluation.statistics import (
    Interval,
    accuracy_difference,
    conclusion,
    mcnemar_p,
    mean,
    paired_counts,
    share,
)
from stepjepa.utils.text import PAGE, one_line, wrapped

_NAME = Names(EvaluateOptions)
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
_QUESTION, _HEAD, _END = 160, 80, 160  # characters of a question, and of a response's beginning and end


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
        width = len(str(max(self.kinds.values(), default=0)))
        for kind, count in self.kinds.items():
            yield f"    {count:>{width}}  {100 * count / wrong:5.1f} %  {KINDS[kind]}"
        for kind, examples in self.examples.items():
            if examples:
                yield f"\n{KINDS[kind]}:"
            for one in examples:
                yield from _example_lines(one)


def _example_lines(one: Prediction) -> Iterator[str]:
    yield f"  index {one.index}: {one_line(one.question, _QUESTION)}"
    note = f" ({one.note})" if one.note else ""
    yield f"    expected {quoted(one.gt_answer or one.ground_truth)}, found {quoted(one.gen_answer)}{note}"
    rest = _rest(one)
    if rest:
        yield f"    {rest}"


def _rest(one: Prediction) -> str:
    """The response's beginning and end, where it is more than the answer that was found in it."""
    line = " ".join(one.generated_response.split())
    if one.generated_response.strip() == (one.gen_answer or "").strip():
        return ""
    return line if len(line) <= _HEAD + _END + 5 else f"{line[:_HEAD]} ... {line[-_END:]}"


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
        yield ""
        rows = [["", "B right", "B wrong"]]
        rows.append(["A right", str(self.both), str(self.only_a)])
        rows.append(["A wrong", str(self.only_b), str(self.neither)])
        for name, right, wrong in rows:
            yield f"  {name:<8}{right:>9}{wrong:>9}"
        for name, examples in self.examples.items():
            if examples:
                yield f"\nonly {name[-1].upper()} is right:"
            for pair in examples:
                yield f"  index {pair['a'].index}: {one_line(pair['a'].question, _QUESTION)}"
                yield f"    expected {quoted(pair['a'].gt_answer or pair['a'].ground_truth)}"
                for letter, one in pair.items():
                    rest = _rest(one)
                    yield f"    {letter.upper()} {quoted(one.gen_answer)}{f': {rest}' if rest else ''}"
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
    read = read_predictions(first), read_predictions(second)
    own = [_first_metric(rows) for rows in read]
    if metric is None and own[0] != own[1]:
        shared = [name for name in read[0][0].scores if name in read[1][0].scores]
        advice = (
            f"--{_NAME.metric} {shared[0]} goes by one that both have"
            if shared
            else "evaluate both with the same metric"
        )
        raise DataError(f"{first} goes by {own[0] or 'an unknown metric'}, {second} by {own[1] or 'one'}; {advice}")
    judged = [
        [one for one in _judged_by(path, rows, metric) if one.correct is not None]
        for path, rows in zip((first, second), read, strict=True)
    ]
    sides = _analysis(first, judged[0], metric, show), _analysis(second, judged[1], metric, show)
    pairs = _same_questions(first, second, *judged)
    counts = paired_counts([bool(one.correct) for one, _ in pairs], [bool(one.correct) for _, one in pairs])
    examples: dict[str, list[dict[str, Prediction]]] = {"only_a": [], "only_b": []}
    for a, b in pairs:
        if a.correct != b.correct:
            examples["only_a" if a.correct else "only_b"].append({"a": a, "b": b})
    examples = {name: group[:show] for name, group in examples.items()}
    return PredictionComparison(*sides, accuracy_difference(*counts), mcnemar_p(*counts[1:3]), *counts, examples)


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
    read = read_predictions(first), read_predictions(second)
    pairs = _same_questions(first, second, *read)
    values = [tuple(map(_values, pair)) for pair in pairs]
    known = [list(dict.fromkeys(name for pair in values for name in pair[side])) for side in (0, 1)]
    shared = [name for name in known[0] if name in known[1]]
    if not shared:
        names = [", ".join(one) or "none" for one in known]
        raise DataError(
            f"no metric in both: {first} has {names[0]}, {second} {names[1]}; evaluate both with the same metric"
        )
    found = []
    for name in shared:
        both = [(a[name], b[name]) for a, b in values if name in a and name in b]
        if all(value in (0.0, 1.0) for pair in both for value in pair):
            counts = paired_counts([a == 1.0 for a, _ in both], [b == 1.0 for _, b in both])
            found.append(PairedMetric(name, accuracy_difference(*counts), len(both), counts))
        else:
            found.append(PairedMetric(name, mean([b - a for a, b in both]), len(both)))
    return found


def _values(one: Prediction) -> dict[str, float]:
    """Metric -> value; the verdict where the metric is not named, as in predictions of other programs."""
    values = dict(one.scores)
    if not values and one.correct is not None:
        values["correct"] = float(one.correct)
    if one.answer_nll is not None:
        values[NLL] = one.answer_nll
    return values


def _same_questions(
    first: Path, second: Path, rows: Sequence[Prediction], others: Sequence[Prediction]
) -> list[tuple[Prediction, Prediction]]:
    """The predictions of both files for each question; raises DataError where the questions are not the same."""
    a, b = _by_index(first, rows), _by_index(second, others)
    alone = sorted(set(a) ^ set(b))
    if alone:
        where, other = (first, second) if alone[0] in a else (second, first)
        raise DataError(
            f"{where} has index {alone[0]} and {other} has not ({len(alone)} such rows): evaluate both on the same rows"
        )
    pairs = [(one, b[index]) for index, one in a.items()]
    for one, other_one in pairs:
        if one.question != other_one.question:
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
    known = ", ".join(predictions[0].scores) or "none"
    for one in predictions:
        if one.scores.get(metric) not in (0.0, 1.0):
            what = "no score" if metric not in one.scores else "a score that is neither 0 nor 1"
            raise DataError(f"{path}: index {one.index} has {what} of {metric} (metrics found: {known})")
    return [replace(one, correct=one.scores[metric] == 1.0) for one in predictions]


def _by_index(path: Path, predictions: Sequence[Prediction]) -> dict[int, Prediction]:
    found: dict[int, Prediction] = {}
    for one in predictions:
        if one.index in found:
            raise DataError(f"{path}: index {one.index} occurs twice")
        found[one.index] = one
    return found


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
    gold, answer = (one.gt_answer or one.ground_truth).strip(), one.gen_answer.strip()
    if answer == text:  # the metric reads all of the response
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
