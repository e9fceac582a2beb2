"""What went wrong in a file of predictions, and how two files differ (``stepjepa evaluate --analyze``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from stepjepa.errors import DataError
from stepjepa.evaluation.error_kinds import KINDS, error_kind
from stepjepa.evaluation.intervals import Interval, mcnemar_p, mean, paired_difference, share
from stepjepa.evaluation.predictions import CUT, Prediction, read_predictions


@dataclass(frozen=True)
class Lengths:
    """Lengths of responses, in tokens where they are recorded, else in characters."""

    n: int
    mean: float | None
    median: float | None
    p90: float | None
    longest: int | None


@dataclass
class Analysis:
    """One file of predictions.

    Attributes:
        metric: that says what is right; empty where the file does not name it.
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
    cut_off: tuple[int, int]
    kinds: dict[str, int]
    lengths: dict[str, Lengths]
    unit: str
    examples: dict[str, list[Prediction]]


@dataclass
class Comparison:
    """Two models on the same questions.

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


def analyze(path: Path, show: int = 2, metric: str | None = None) -> Analysis:
    """Look into one file.

    Args:
        show: examples of each kind that are kept.
        metric: says what is right; by default the first one of the evaluation.

    Raises:
        DataError: the file cannot be read, or holds no answers that are right or wrong.
    """
    predictions = read_predictions(path)
    return analysis_of(str(path), judged_by(str(path), predictions, metric), metric or first_metric(predictions), show)


def first_metric(predictions: Sequence[Prediction]) -> str:
    """The metric that ``correct`` is of; empty where that is not known."""
    return next(iter(predictions[0].scores), "")


def judged_by(name: str, predictions: Sequence[Prediction], metric: str | None) -> list[Prediction]:
    """The predictions with what `metric` says in ``correct``; as they are for None.

    Raises:
        DataError: not every prediction has a verdict of this metric that is yes or no.
    """
    if metric is None:
        return list(predictions)
    known = ", ".join(predictions[0].scores) or "none"
    for one in predictions:
        if one.scores.get(metric) not in (0.0, 1.0):
            what = "no score" if metric not in one.scores else "a score that is neither 0 nor 1"
            raise DataError(f"{name}: index {one.index} has {what} of {metric} (metrics found: {known})")
    return [replace(one, correct=one.scores[metric] == 1.0) for one in predictions]


def analysis_of(name: str, predictions: Sequence[Prediction], metric: str = "", show: int = 2) -> Analysis:
    """Look into predictions.

    Raises:
        DataError: none of them is right or wrong.
    """
    decided = [one for one in predictions if one.correct is not None]
    if not decided:
        raise DataError(
            f"{name}: no prediction is called right or wrong (`correct`); evaluate with a metric such as gsm8k or exact"
        )
    right, wrong = [one for one in decided if one.correct], [one for one in decided if not one.correct]
    found: dict[str, list[Prediction]] = {kind: [] for kind in KINDS}
    for one in wrong:
        found[error_kind(one)].append(one)
    in_tokens = all(one.tokens is not None for one in decided)
    sizes = [
        [one.tokens or 0 if in_tokens else len(one.generated_response) for one in group] for group in (right, wrong)
    ]
    metrics = dict.fromkeys(metric for one in predictions for metric in one.scores)
    return Analysis(
        name,
        metric,
        len(decided),
        len(right),
        len(predictions) - len(decided),
        share(len(right), len(decided)),
        {metric: mean([one.scores[metric] for one in predictions if metric in one.scores]) for metric in metrics},
        (sum(one.stop_reason == CUT for one in right), sum(one.stop_reason == CUT for one in wrong)),
        {kind: len(group) for kind, group in found.items() if group},
        dict(zip(("right", "wrong"), map(_lengths, sizes), strict=True)),
        "tokens" if in_tokens else "characters",
        {kind: group[:show] for kind, group in found.items() if group},
    )


def compare(first: Path, second: Path, show: int = 2, metric: str | None = None) -> Comparison:
    """Look at two models' answers to the same questions, matched by index and question.

    Args:
        show, metric: as for `analyze`.

    Raises:
        DataError: a file cannot be read, or the questions or the metrics are not the same.
        ConfigError: SciPy is not installed.
    """
    read = [read_predictions(path) for path in (first, second)]
    if metric is None:
        by = [first_metric(predictions) for predictions in read]
        if by[0] != by[1]:
            shared = [name for name in read[0][0].scores if name in read[1][0].scores]
            advice = (
                f"--metric {shared[0]} goes by one that both have" if shared else "evaluate both with the same metric"
            )
            raise DataError(f"{first} goes by {by[0] or 'an unknown metric'}, {second} by {by[1] or 'one'}; {advice}")
    name = metric or first_metric(read[0])
    a, b = (
        _by_index(path, judged_by(str(path), predictions, metric))
        for path, predictions in zip((first, second), read, strict=True)
    )
    _check_same(first, a, second, b)
    pairs = [(a[index], b[index]) for index in a]
    only_a = [pair for pair in pairs if pair[0].correct and not pair[1].correct]
    only_b = [pair for pair in pairs if pair[1].correct and not pair[0].correct]
    both = sum(bool(one.correct and other.correct) for one, other in pairs)
    counts = both, len(only_a), len(only_b), len(pairs) - both - len(only_a) - len(only_b)
    return Comparison(
        analysis_of(str(first), list(a.values()), name, show),
        analysis_of(str(second), list(b.values()), name, show),
        paired_difference(*counts),
        mcnemar_p(len(only_a), len(only_b)),
        *counts,
        {"only_a": only_a[:show], "only_b": only_b[:show]},
    )


def _by_index(path: Path, predictions: Sequence[Prediction]) -> dict[int, Prediction]:
    found: dict[int, Prediction] = {}
    for one in predictions:
        if one.index in found:
            raise DataError(f"{path}: index {one.index} stands there twice")
        found[one.index] = one
    decided = {index: one for index, one in found.items() if one.correct is not None}
    if not decided:
        analysis_of(str(path), predictions)
    return decided


def _check_same(first: Path, a: dict[int, Prediction], second: Path, b: dict[int, Prediction]) -> None:
    alone = sorted(set(a) ^ set(b))
    if alone:
        where, other = (first, second) if alone[0] in a else (second, first)
        raise DataError(
            f"{where} has index {alone[0]} and {other} has not ({len(alone)} such rows): evaluate both on the same rows"
        )
    for index in a:
        if a[index].question != b[index].question:
            raise DataError(
                f"{first} and {second} ask different questions at index {index}: evaluate both on the same file"
            )


def _lengths(sizes: list[int]) -> Lengths:
    if not sizes:
        return Lengths(0, None, None, None, None)
    ordered = sorted(sizes)
    return Lengths(len(sizes), fmean(sizes), median(sizes), ordered[(9 * (len(sizes) - 1)) // 10], ordered[-1])


def example_record(one: Prediction) -> dict[str, Any]:
    """A prediction as an example."""
    names = (
        "index",
        "question",
        "ground_truth",
        "gt_answer",
        "gen_answer",
        "stop_reason",
        "note",
        "generated_response",
    )
    return {name: getattr(one, name) for name in names}
