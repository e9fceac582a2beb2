"""Accuracies of runs, paired differences on the same questions, and answers side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from stepjepa.config.option import Names, options_of
from stepjepa.errors import StepJepaError
from stepjepa.evaluation.metrics.base import NLL
from stepjepa.evaluation.predictions import (
    PairedMetric,
    Prediction,
    paired_metrics,
    read_predictions,
)
from stepjepa.evaluation.statistics import Interval, conclusion, mcnemar_p
from stepjepa.objectives.base import trained_pairs
from stepjepa.report.reading import PREDICTIONS, Reader, ReportedRun
from stepjepa.training.options import JEPAOptions, RunOptions, TrainerOptions
from stepjepa.utils.files import Record
from stepjepa.utils.text import written

_NAME = Names(JEPAOptions, TrainerOptions)
# Longest question or answer on the page, in characters.
_LONGEST = 3000
# Right, wrong, or neither, for a metric that is not right-or-wrong.
_LETTERS = {True: "r", False: "w", None: "u"}


def accuracy_rows(runs: Sequence[ReportedRun]) -> Iterator[list[str]]:
    """The cells of a row per evaluation, metric and run: these three, the value with its interval, of what it is, answers
    that did not stop, and skipped rows."""
    for name in evaluation_names(runs):
        results = {
            run.label: run.evaluations[name].result for run in runs if name in run.evaluations
        }
        metrics = dict.fromkeys(
            metric for result in results.values() for metric in result["metrics"]
        )
        for metric in metrics:
            for label, result in results.items():
                summary = result["metrics"].get(metric)
                if summary:
                    yield [name, metric, label, *_accuracy_cells(summary, result)]


def evaluation_names(runs: Sequence[ReportedRun]) -> list[str]:
    """The names of the runs' evaluations."""
    return list(dict.fromkeys(name for run in runs for name in run.evaluations))


def _accuracy_cells(summary: Record, result: Record) -> list[str]:
    n = summary.get("n")
    interval = Interval(*(summary.get(key) for key in ("value", "low", "high")))
    value = _in_words(interval)
    of = f"mean of {n} answers"
    # A likelihood is averaged over all tokens, but its interval belongs to the mean over rows.
    if "perplexity" in summary:
        value = written(interval.value, ".4f")
        row_mean = interval._replace(value=summary.get("row_mean"))
        of = f"nats per token; mean of {n} rows {_in_words(row_mean)}"
    if summary.get("kind") == "accuracy":
        value = interval.percent()
        of = f"{summary.get('correct')} of {n} right"

    stop = result.get("generation", {}).get("did_not_stop")
    did_not_stop = f"{stop['count']} of {stop['n']}" if stop else "-"
    skipped = result.get("rows", {}).get("skipped", {})
    return [value, of, did_not_stop, str(sum(skipped.values()))]


def _in_words(interval: Interval, sign: str = "", unit: str = "") -> str:
    """``1.2500 (1.0000 to 2.0000)``, with a sign and with a unit after the value if they are given."""
    value, low, high = interval
    form = f"{sign}.4f"
    text = f"{written(value, form)}{unit}"
    return text if low is None or high is None else f"{text} ({low:{form}} to {high:{form}})"


class PairedRow(NamedTuple):
    """Two models, compared in one metric on the same questions.

    Attributes:
        cells: evaluation and metric, model a, model b, and the difference with its interval, or why there is none; for a
            right-or-wrong metric also McNemar's p, and the number of questions that both, only a, only b and neither
            answered right; for another metric the number of questions.
        headline: paragraph for the top of the page; empty if there is none.
    """

    cells: list[str]
    headline: str = ""


def control_of(run: ReportedRun) -> str:
    """The kind of a control run; empty if the run is not a control."""
    kind = str(run.settings.get("control") or "none")
    return kind if kind != "none" and trained_pairs(run.settings) else ""


def _is_control(a: ReportedRun, b: ReportedRun) -> bool:
    """Whether `a` is a control of `b`: it is one, and only options of a study's variants differ."""
    if control_of(b) or not control_of(a):
        return False
    names = {name for name in a.settings.keys() | b.settings.keys() if affects_numbers(name)}
    names -= {_NAME.control, _NAME.same_flop}
    return all(a.settings.get(name) == b.settings.get(name) for name in names)


def affects_numbers(setting: str) -> bool:
    """Whether runs that differ in a setting differ in their numbers."""
    known = options_of(RunOptions, JEPAOptions, TrainerOptions)
    if setting not in known:
        return True
    return setting != _NAME.output_dir and known[setting].identity and known[setting].dumped


def paired_rows(runs: Sequence[ReportedRun]) -> Iterator[PairedRow]:
    """Compare each model with the first one (plain training, if any run has no pairs), and each method with its controls.

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
                if a is before[0] or _is_control(a, b):
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
        yield PairedRow([name, a.label, b.label, f"not compared: {error}"])
        return
    for paired in metrics:
        difference = _difference(paired)
        cells = [f"{name}, {paired.metric}", a.label, b.label, difference]
        if paired.counts is not None:
            cells += [f"{mcnemar_p(*paired.counts[1:3]):.3g}", *map(str, paired.counts)]
        else:
            cells.append(f"mean of {paired.n} questions")
        headline = ""
        # A stale evaluation stays in the table but supports no conclusion.
        if not a.evaluations[name].stale and (paired is metrics[0] or paired.metric == NLL):
            shuffled = [run for run in runs if control_of(run) == "shuffled"]
            controlled = any(_is_control(run, b) for run in shuffled)
            headline = _headline(name, paired, a, b, difference, controlled)
        yield PairedRow(cells, headline)


def _headline(
    name: str,
    paired: PairedMetric,
    a: ReportedRun,
    b: ReportedRun,
    difference: str,
    controlled: bool,
) -> str:
    shown = f"{b.label} - {a.label}: {difference}, 95 % interval; {paired.metric} of {paired.n} questions ({name})\n"
    if control_of(b):
        return f"{shown}{b.label} is a control: only what a run gains over the control can come from the run's pairs."
    return shown + conclusion(
        paired.difference,
        a.label,
        b.label,
        controlled,
        bool(b.settings.get("same_flop")),
        counts=paired.counts,
        lower_is_better=paired.metric == NLL,
    )


def _difference(paired: PairedMetric) -> str:
    """A difference with its unit and interval; accuracies in percentage points."""
    if paired.counts is not None:
        return paired.difference.percent("+", "points")
    return _in_words(paired.difference, "+", " nats per token" if paired.metric == NLL else "")


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
            file = run.evaluations[name].answers if name in run.evaluations else None
            if file is not None and file.name == PREDICTIONS:
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
    taken = Counter[tuple[str, ...]]()
    turns = []
    for place, pattern in enumerate(zip(*letters, strict=True)):
        turns.append((taken[pattern], place))
        taken[pattern] += 1
    return sorted(place for _, place in sorted(turns)[:most])


def cut(text: str, longest: int = _LONGEST) -> str:
    """A text, without its middle if it is longer than `longest` characters."""
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters are left out here ...]\n{text[-half:]}"
