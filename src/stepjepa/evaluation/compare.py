"""What went wrong in a file of predictions, and how two files differ (``stepjepa evaluate --analyze``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from stepjepa.errors import DataError
from stepjepa.evaluation.error_kinds import KINDS, error_kind
from stepjepa.evaluation.intervals import Interval, mcnemar_p, mean, paired_counts, paired_difference, percent, share
from stepjepa.evaluation.predictions import CUT, Prediction, read_predictions

_QUESTION, _HEAD, _END = 160, 80, 160  # characters of a question, and of a response's beginning and end
_EXAMPLE = "index question ground_truth gt_answer gen_answer stop_reason note generated_response".split()


@dataclass(frozen=True)
class Lengths:
    """Lengths of responses, in tokens where they are recorded, else in characters."""

    n: int
    mean: float | None = None
    median: float | None = None
    p90: float | None = None
    longest: int | None = None

    @classmethod
    def of(cls, sizes: Sequence[int]) -> Lengths:
        """Of these responses."""
        if not sizes:
            return cls(0)
        ordered = sorted(sizes)
        return cls(len(sizes), fmean(sizes), median(sizes), ordered[(9 * (len(sizes) - 1)) // 10], ordered[-1])


@dataclass
class Analysis:
    """One file of predictions; printed, a summary with examples.

    Attributes:
        metric: decides what is right; empty where the file does not name it.
        n, correct: predictions that are right or wrong, and those that are right.
        undecided: predictions that no metric calls right or wrong.
        accuracy: with its interval.
        scores: mean of each metric with its interval.
        cut_off: responses cut at max_new_tokens: among the right ones, among the wrong ones.
        kinds: kind of error -> wrong predictions.
        lengths: of right and of wrong responses.
        unit: of the lengths.
        examples: kind -> the first such predictions.
    """

    file: str
    metric: str
    n: int
    correct: int
    undecided: int
    accuracy: Interval
    scores: dict[str, Interval]
    cut_off: dict[str, int]
    kinds: dict[str, int]
    lengths: dict[str, Lengths]
    unit: str
    examples: dict[str, list[Prediction]]

    def record(self) -> dict[str, Any]:
        """As plain JSON values."""
        values = asdict(self)
        values["accuracy"] = self.accuracy._asdict()
        values["scores"] = {name: interval._asdict() for name, interval in self.scores.items()}
        values["examples"] = {kind: list(map(_example_record, group)) for kind, group in self.examples.items()}
        return values

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        wrong = self.n - self.correct
        yield f"{self.file}: {self.n} answers, {self.correct} right, {wrong} wrong"
        by = f" by {self.metric}" if self.metric else ""
        yield f"  accuracy{by}: {percent(self.accuracy)}, 95 % interval in brackets"
        if self.undecided:
            yield f"  {self.undecided} answers are called neither right nor wrong, and are left out"
        others = [f"{name} {interval.value:.4f}" for name, interval in self.scores.items() if name != self.metric]
        if others:
            yield f"  means of the other metrics: {', '.join(others)}"
        if any(self.cut_off.values()):
            counts = f"{self.cut_off['right']} of the right answers, {self.cut_off['wrong']} of the wrong ones"
            yield f"  cut off at max_new_tokens: {counts}"
        yield f"  {self.unit} per response:"
        for name, sizes in self.lengths.items():
            if sizes.n:
                middle = f"mean {sizes.mean:.1f}, median {sizes.median:g}"
                yield f"    {name}  {middle}, 90 % below {sizes.p90}, longest {sizes.longest}"
        if self.kinds:
            yield "  kinds of errors, each wrong answer counted once:"
        width = len(str(max(self.kinds.values(), default=0)))
        for kind, count in self.kinds.items():
            yield f"    {count:>{width}}  {100 * count / wrong:5.1f} %  {KINDS[kind]}"
        for kind, examples in self.examples.items():
            if examples:
                yield f"\n{KINDS[kind]}:"
            for one in examples:
                yield f"  index {one.index}: {_shortened(one.question, _QUESTION)}"
                note = f" ({one.note})" if one.note and one.note not in KINDS.values() else ""
                yield f"    expected {_expected(one)}, found {_answer(one.gen_answer)}{note}"
                if _has_more(one):
                    yield f"    {_ends(one.generated_response)}"


@dataclass
class Comparison:
    """Two models on the same questions; printed, the table with examples.

    Attributes:
        difference: accuracy of b less that of a, with its interval: a is the baseline.
        p: of McNemar's exact test.
        both, only_a, only_b, neither: of the two are right.
        examples: ``only_a`` and ``only_b`` -> the first questions, with both predictions.
    """

    a: Analysis
    b: Analysis
    difference: Interval
    p: float
    both: int
    only_a: int
    only_b: int
    neither: int
    examples: dict[str, list[tuple[Prediction, Prediction]]]

    def record(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "a": self.a.record(),
            "b": self.b.record(),
            "difference": self.difference._asdict(),
            "mcnemar_p": self.p,
            "both": self.both,
            "only_a": self.only_a,
            "only_b": self.only_b,
            "neither": self.neither,
            "examples": {
                name: [{"a": _example_record(a), "b": _example_record(b)} for a, b in pairs]
                for name, pairs in self.examples.items()
            },
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        if self.a.metric:
            yield f"right is what {self.a.metric} calls right"
        yield f"A  {self.a.file}: {percent(self.a.accuracy)}"
        yield f"B  {self.b.file}: {percent(self.b.accuracy)}"
        difference = percent(self.difference, "+").replace(" %", " points", 1)
        yield f"B - A  {difference}, 95 % intervals in brackets; McNemar's exact test p = {self.p:.3g}"
        yield ""
        rows = [("", "B right", "B wrong"), ("A right", self.both, self.only_a), ("A wrong", self.only_b, self.neither)]
        yield from (f"  {row:<8}{left:>9}{right:>9}" for row, left, right in rows)
        for name, examples in self.examples.items():
            if examples:
                yield f"\nonly {name[-1].upper()} is right:"
            for a, b in examples:
                yield f"  index {a.index}: {_shortened(a.question, _QUESTION)}"
                yield f"    expected {_expected(a)}"
                for letter, one in (("A", a), ("B", b)):
                    more = f": {_ends(one.generated_response)}" if _has_more(one) else ""
                    yield f"    {letter} {_answer(one.gen_answer)}{more}"
        yield ""
        for letter, analysis in (("A", self.a), ("B", self.b)):
            kinds = ", ".join(f"{KINDS[kind]} {count}" for kind, count in analysis.kinds.items()) or "none"
            yield f"errors of {letter}: {kinds}"


def analyze_predictions(path: Path, show: int = 2, metric: str | None = None) -> Analysis:
    """Look into one file.

    Args:
        show: examples of each kind that are kept.
        metric: decides what is right; by default the first one of the evaluation.

    Raises:
        DataError: the file cannot be read, or holds no answers that are right or wrong.
    """
    predictions = read_predictions(path)
    return _analysis(str(path), _judged_by(path, predictions, metric), metric or _first_metric(predictions), show)


def compare(first: Path, second: Path, show: int = 2, metric: str | None = None) -> Comparison:
    """Look at two models' answers to the same questions, matched by index and question.

    Args:
        first: the baseline.
        show, metric: as for `analyze_predictions`.

    Raises:
        DataError: a file cannot be read, or the questions or the metrics are not the same.
    """
    read = read_predictions(first), read_predictions(second)
    own = tuple(map(_first_metric, read))
    if metric is None and own[0] != own[1]:
        shared = [name for name in read[0][0].scores if name in read[1][0].scores]
        advice = f"--metric {shared[0]} goes by one that both have" if shared else "evaluate both with the same metric"
        raise DataError(f"{first} goes by {own[0] or 'an unknown metric'}, {second} by {own[1] or 'one'}; {advice}")
    name = metric or own[0]
    a, b = (_by_index(path, _judged_by(path, rows, metric)) for path, rows in zip((first, second), read, strict=True))
    _check_same(first, a, second, b)
    pairs = [(a[index], b[index]) for index in a]
    counts = paired_counts([bool(one.correct) for one, _ in pairs], [bool(other.correct) for _, other in pairs])
    return Comparison(
        _analysis(str(first), list(a.values()), name, show),
        _analysis(str(second), list(b.values()), name, show),
        paired_difference(*counts),
        mcnemar_p(*counts[1:3]),
        *counts,
        {
            "only_a": [pair for pair in pairs if pair[0].correct and not pair[1].correct][:show],
            "only_b": [pair for pair in pairs if pair[1].correct and not pair[0].correct][:show],
        },
    )


def _analysis(name: str, predictions: Sequence[Prediction], metric: str, show: int) -> Analysis:
    decided = [one for one in predictions if one.correct is not None]
    if not decided:
        raise DataError(
            f"{name}: no prediction is called right or wrong (`correct`); evaluate with a metric such as gsm8k or exact"
        )
    groups = {"right": [one for one in decided if one.correct], "wrong": [one for one in decided if not one.correct]}
    kinds: dict[str, list[Prediction]] = {kind: [] for kind in KINDS}
    for one in groups["wrong"]:
        kinds[error_kind(one)].append(one)
    in_tokens = all(one.tokens is not None for one in decided)
    metrics = dict.fromkeys(metric for one in predictions for metric in one.scores)
    return Analysis(
        name,
        metric,
        len(decided),
        len(groups["right"]),
        len(predictions) - len(decided),
        share(len(groups["right"]), len(decided)),
        {metric: mean([one.scores[metric] for one in predictions if metric in one.scores]) for metric in metrics},
        {verdict: sum(one.stop_reason == CUT for one in group) for verdict, group in groups.items()},
        {kind: len(group) for kind, group in kinds.items() if group},
        {
            verdict: Lengths.of([one.tokens or 0 if in_tokens else len(one.generated_response) for one in group])
            for verdict, group in groups.items()
        },
        "tokens" if in_tokens else "characters",
        {kind: group[:show] for kind, group in kinds.items() if group},
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
    """The predictions that are right or wrong."""
    found: dict[int, Prediction] = {}
    for one in predictions:
        if one.index in found:
            raise DataError(f"{path}: index {one.index} occurs twice")
        found[one.index] = one
    return {index: one for index, one in found.items() if one.correct is not None}


def _check_same(first: Path, a: dict[int, Prediction], second: Path, b: dict[int, Prediction]) -> None:
    alone = sorted(set(a) ^ set(b))
    if alone and a and b:
        where, other = (first, second) if alone[0] in a else (second, first)
        raise DataError(
            f"{where} has index {alone[0]} and {other} has not ({len(alone)} such rows): evaluate both on the same rows"
        )
    for index in a if b else ():
        if a[index].question != b[index].question:
            raise DataError(
                f"{first} and {second} ask different questions at index {index}: evaluate both on the same file"
            )


def _example_record(one: Prediction) -> dict[str, Any]:
    return {name: getattr(one, name) for name in _EXAMPLE}


def _has_more(one: Prediction) -> bool:
    """Whether the response is more than the answer that was found in it."""
    return one.generated_response.strip() != (one.gen_answer or "").strip()


def _expected(one: Prediction) -> str:
    return _answer(one.gt_answer or one.ground_truth)


def _answer(text: str | None) -> str:
    return "none" if text is None else repr(_shortened(text, _HEAD))


def _shortened(text: str, length: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[:length]}..."


def _ends(text: str) -> str:
    """The beginning and the end of a response, in one line."""
    line = " ".join(text.split())
    return line if len(line) <= _HEAD + _END + 5 else f"{line[:_HEAD]} ... {line[-_END:]}"
