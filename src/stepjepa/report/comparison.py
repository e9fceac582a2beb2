"""Accuracies of runs, paired differences on the same questions, and answers side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepjepa.errors import StepJepaError
from stepjepa.evaluation.metrics.base import NLL
from stepjepa.evaluation.predictions import (
    PairedMetric,
    Prediction,
    paired_metrics,
    read_predictions,
)
from stepjepa.evaluation.statistics import conclusion, mcnemar_p
from stepjepa.objectives.base import trained_pairs
from stepjepa.report.reading import Reader, ReportedRun, number, table
from stepjepa.utils.files import Record
from stepjepa.utils.text import written

# Longest question or answer on the page, in characters.
_LONGEST = 3000
# Right, wrong, or neither, for a metric that is not right-or-wrong.
_LETTERS = {True: "r", False: "w", None: "u"}


@dataclass(frozen=True)
class AccuracyRow:
    """One metric of one evaluation of a run."""

    evaluation: str
    metric: str
    run: str
    value: str
    interval: str
    of: str
    did_not_stop: str
    skipped: str


def accuracy_rows(runs: Sequence[ReportedRun]) -> Iterator[AccuracyRow]:
    """A row per evaluation, metric and run, grouped by evaluation and metric."""
    for name in evaluation_names(runs):
        results = {
            run.label: run.evaluations[name].result for run in runs if name in run.evaluations
        }
        metrics = dict.fromkeys(
            metric for result in results.values() for metric in table(result, "metrics")
        )
        for metric in metrics:
            for label, result in results.items():
                summary = table(result, "metrics", metric)
                if summary:
                    yield _accuracy_row(name, metric, label, summary, result)


def evaluation_names(runs: Sequence[ReportedRun]) -> list[str]:
    """The names of the runs' evaluations."""
    return list(dict.fromkeys(name for run in runs for name in run.evaluations))


def _accuracy_row(
    name: str, metric: str, label: str, summary: Mapping[str, Any], result: Mapping[str, Any]
) -> AccuracyRow:
    value = number(summary, "value")
    low, high = number(summary, "low"), number(summary, "high")
    n = summary.get("n")
    text = written(value, ".4f")
    of = f"mean of {n} answers"
    interval = ""
    if low is not None and high is not None:
        interval = f"[{low:.4f}, {high:.4f}]"
    # A likelihood is averaged over all tokens, but its interval belongs to the mean over rows.
    if "perplexity" in summary:
        row_mean = written(number(summary, "row_mean"), ".4f")
        of = f"nats per token; mean of {n} rows {row_mean} {interval}".strip()
        interval = ""
    if summary.get("kind") == "accuracy":
        text = written(value, ".1%")
        of = f"{summary.get('correct')} of {n} right"
        if low is not None and high is not None:
            interval = f"[{100 * low:.1f}, {100 * high:.1f}]"

    stop = table(result, "generation", "did_not_stop")
    did_not_stop = f"{stop.get('count')} of {stop.get('n')}" if stop else "-"
    reasons = table(result, "rows", "skipped")
    skipped = sum(number(reasons, reason) or 0 for reason in reasons)
    return AccuracyRow(name, metric, label, text, interval, of, did_not_stop, f"{skipped:g}")


@dataclass(frozen=True)
class PairedRow:
    """Two models, compared in one metric on the same questions.

    Attributes:
        names: evaluation and metric, model a, model b.
        cells: the difference and its interval; for a right-or-wrong metric also McNemar's p, and the number of questions
            that both, only a, only b and neither answered right.
        n: number of questions.
        why_not: why the models cannot be compared; empty if they can.
        headline: paragraph for the top of the page; empty if there is none.
    """

    names: list[str]
    cells: list[str] = field(default_factory=list)
    n: int = 0
    why_not: str = ""
    headline: str = ""


def control_of(run: ReportedRun) -> str:
    """The kind of a control run; empty if the run is not a control."""
    kind = str(run.settings.get("control") or "none")
    return kind if kind != "none" and trained_pairs(run.settings) else ""


def paired_rows(runs: Sequence[ReportedRun]) -> Iterator[PairedRow]:
    """Compare each model with the first one (plain training, if any run has no pairs), and each method with the controls.

    Two models must have answered the same questions; they are compared in every metric that both have. Headlines are for the
    first metric and the likelihood of the reference answers.
    """
    # Plain training first, then controls, then methods.
    ordered = sorted(runs, key=lambda run: (trained_pairs(run.settings), not control_of(run)))
    for name in evaluation_names(runs):
        before: list[ReportedRun] = []
        for b in ordered:
            if name not in b.evaluations or b.evaluations[name].answers is None:
                continue
            for a in before:
                if a is before[0] or (control_of(a) and not control_of(b)):
                    yield from _paired(name, a, b, ordered)
            before.append(b)


def _paired(
    name: str, a: ReportedRun, b: ReportedRun, runs: Sequence[ReportedRun]
) -> Iterator[PairedRow]:
    first, second = a.evaluations[name].answers, b.evaluations[name].answers
    assert first is not None and second is not None
    try:
        metrics = paired_metrics(first, second)
    except StepJepaError as error:
        yield PairedRow([name, a.label, b.label], why_not=str(error))
        return
    for paired in metrics:
        cells = list(difference_cells(paired))
        if paired.counts is not None:
            cells += [f"{mcnemar_p(*paired.counts[1:3]):.3g}", *map(str, paired.counts)]
        headline = ""
        # A stale evaluation stays in the table but supports no conclusion.
        if not a.evaluations[name].stale and (paired is metrics[0] or paired.metric == NLL):
            headline = _headline(
                name, paired, a, b, cells, any(control_of(run) == "shuffled" for run in runs)
            )
        yield PairedRow(
            [f"{name}, {paired.metric}", a.label, b.label], cells, paired.n, headline=headline
        )


def _headline(
    name: str,
    paired: PairedMetric,
    a: ReportedRun,
    b: ReportedRun,
    cells: Sequence[str],
    controlled: bool,
) -> str:
    value, interval = cells[:2]
    if interval:
        value += f" ({interval[1:-1].replace(', ', ' to ')})"
    difference = f"{b.label} - {a.label}: {value}, 95 % interval; {paired.metric} of {paired.n} questions ({name})\n"
    if control_of(b):
        return f"{difference}{b.label} is a control: only what a run gains over the control can come from the run's pairs."
    return difference + conclusion(
        paired.difference,
        a.label,
        b.label,
        controlled,
        bool(b.settings.get("same_flop")),
        counts=paired.counts,
        lower_is_better=paired.metric == NLL,
    )


def difference_cells(paired: PairedMetric) -> tuple[str, str]:
    """A difference with its unit, and its interval; accuracies in percentage points."""
    unit, scale, form = "", 1, "+.4f"
    if paired.counts is not None:
        unit, scale, form = " points", 100, "+.1f"
    elif paired.metric == NLL:
        unit = " nats per token"
    value, low, high = paired.difference
    if value is None:
        return "-", ""
    interval = (
        "" if low is None or high is None else f"[{scale * low:{form}}, {scale * high:{form}}]"
    )
    return f"{scale * value:{form}}{unit}", interval


# Answers side by side


def prediction_sets(runs: Sequence[ReportedRun], most: int, reader: Reader) -> list[Record]:
    """The answers of every evaluation, as JSON for the page.

    An entry has a ``name``; ``models`` with a label, a metric, and a letter per question (``r`` right, ``w`` wrong, ``u``
    neither, for a metric that is not right-or-wrong, ``-`` not asked), which the page counts; and ``rows``, at most `most`
    questions with all texts, spread evenly over the patterns of right and wrong.
    """
    sets = []
    for name in evaluation_names(runs):
        answers: dict[str, list[Prediction]] = {}
        for run in runs:
            file = run.evaluations[name].predictions if name in run.evaluations else None
            if file is not None:
                try:
                    answers[run.label] = read_predictions(file)
                except StepJepaError as error:
                    reader.problems.append(str(error))
        if answers:
            sets.append(_prediction_set(name, answers, most))
    return sets


def _prediction_set(name: str, answers: Mapping[str, Sequence[Prediction]], most: int) -> Record:
    # A question is identified by its row and its text: models may have been evaluated on different rows.
    by_question = [
        {(each.index, each.question): each for each in predictions}
        for predictions in answers.values()
    ]
    questions = sorted({question for known in by_question for question in known})
    models = []
    for (label, predictions), known in zip(answers.items(), by_question, strict=True):
        letters = "".join(
            _LETTERS[known[key].correct] if key in known else "-" for key in questions
        )
        metric = next(iter(predictions[0].scores), "")
        models.append({"label": label, "metric": metric, "letters": letters})
    rows = []
    for place in chosen([str(model["letters"]) for model in models], most):
        answered = [known.get(questions[place]) for known in by_question]
        first = next(prediction for prediction in answered if prediction is not None)
        reference = first.ground_truth if first.gt_answer is None else first.gt_answer
        rows.append(
            {
                "place": place,
                "index": first.index,
                "question": cut(first.question),
                "reference": cut(reference or ""),
                "answers": [prediction and _answer(prediction) for prediction in answered],
            }
        )
    return {"name": name, "models": models, "rows": rows}


def _answer(prediction: Prediction) -> dict[str, str]:
    return {
        "text": cut(prediction.generated_response),
        "found": cut(prediction.gen_answer or ""),
        "stop": str(prediction.stop_reason or ""),
    }


def chosen(letters: Sequence[str], most: int) -> list[int]:
    """Positions of at most `most` questions, taken in turn from the patterns of right and wrong."""
    places = defaultdict[tuple[str, ...], list[int]](list)
    for place, pattern in enumerate(zip(*letters, strict=True)):
        places[pattern].append(place)
    turns = []
    for group in places.values():
        turns += [(turn, group[0], place) for turn, place in enumerate(group)]
    return sorted(place for _, _, place in sorted(turns)[:most])


def cut(text: str, longest: int = _LONGEST) -> str:
    """A text, without its middle if it is longer than `longest` characters."""
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters are left out here ...]\n{text[-half:]}"
