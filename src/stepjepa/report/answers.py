"""Evaluations of runs: accuracies, paired comparisons, and predictions side by side."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any, TypeVar

from stepjepa.errors import StepJepaError
from stepjepa.evaluation.compare import compare
from stepjepa.evaluation.intervals import Interval, mcnemar_p, paired_counts, paired_difference, percent, share
from stepjepa.evaluation.predictions import Prediction, read_predictions
from stepjepa.report.files import Reader, entries, mapping, number
from stepjepa.report.reading import Run

TEXT_ROOM = 1_200_000  # characters of all texts of the predictions
LONGEST, SHORTEST = 6000, 400  # of one text, however many there are
DEMO = {"evaluation": "demo's held-out problems", "metric": "final answer"}
T = TypeVar("T")
ALL_PAIRS = 5  # runs of which every two are compared; of more each with the first


def accuracy_rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """A row for each evaluation, metric and run, those of one evaluation and metric together."""
    rows = []
    for evaluation in _names(runs):
        metrics = dict.fromkeys(
            metric for run in runs if evaluation in run.evaluations
            for metric in mapping(run.evaluations[evaluation].result.get("metrics"))
        )  # fmt: skip
        for metric in metrics:
            for run in runs:
                result = run.evaluations[evaluation].result if evaluation in run.evaluations else {}
                found = mapping(mapping(result.get("metrics")).get(metric))
                if found:
                    value = _metric(found)
                    stop = mapping(mapping(result.get("generation")).get("did_not_stop"))
                    skipped = sum(
                        number(count) or 0 for count in mapping(mapping(result.get("rows")).get("skipped")).values()
                    )
                    rows.append(
                        {"evaluation": evaluation, "metric": metric, "run": run.label, **value}
                        | {"stop": f"{stop.get('count')} of {stop.get('n')}" if stop else "-", "skipped": skipped}
                    )
    return [*_demo_rows(runs), *rows]


def _metric(found: dict[str, Any]) -> dict[str, Any]:
    """A metric's value, its interval, what it is of, and the interval's place on a bar from 0 to 100."""
    value, low, high = (number(found.get(name)) for name in ("value", "low", "high"))
    if found.get("kind") == "accuracy":
        of = f"{found.get('correct')} of {found.get('n')} right"
        bar = None if None in (value, low, high) else [round(100 * end, 1) for end in (value, low, high)]  # type: ignore[operator]
        ends = "" if low is None or high is None else f"[{100 * low:.1f}, {100 * high:.1f}]"
        return {"value": percent(Interval(value, None, None)), "interval": ends, "of": of, "bar": bar}
    ends = "" if low is None or high is None else f"[{low:.4f}, {high:.4f}]"
    shown = {"value": "-" if value is None else f"{value:.4f}", "interval": ends, "bar": None}
    if "perplexity" in found:  # the interval is that of the rows' mean
        mean = number(found.get("row_mean"))
        words = f"nats a token; mean of {found.get('n')} rows {'-' if mean is None else f'{mean:.4f}'} {ends}"
        return {**shown, "interval": "", "of": words.strip()}
    return {**shown, "of": f"mean of {found.get('n')} answers"}


def _demo_rows(runs: Sequence[Run]) -> Iterator[dict[str, Any]]:
    for run in runs:
        correct = _verdicts(run)
        if correct:
            right, n = sum(correct), len(correct)
            found = {**share(right, n)._asdict(), "kind": "accuracy", "correct": right, "n": n}
            stopped = number(run.demo.get("stopped"))
            stop = "-" if stopped is None else f"{round((1 - stopped) * n)} of {n}"
            yield {**DEMO, "run": run.label, "stop": stop, "skipped": 0, **_metric(found)}


def _verdicts(run: Run) -> list[bool]:
    """Whether the demo's answers were right, in the order of its problems."""
    return [bool(one) for one in entries(run.demo.get("correct"))]


def paired_rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Every two models that have answered the same questions: difference with its interval, McNemar's p, the four counts.

    What keeps two from being compared stands in ``why_not``.
    """
    rows: list[dict[str, Any]] = []
    for a, b in _pairs([run for run in runs if _verdicts(run)]):
        if len(_verdicts(a)) == len(_verdicts(b)):
            counts = paired_counts(_verdicts(a), _verdicts(b))
            rows.append(
                {**DEMO, "a": a.label, "b": b.label, **_paired(paired_difference(*counts), counts, _p(*counts[1:3]))}
            )
    for evaluation in _names(runs):
        files = {
            run.label: file
            for run in runs
            if evaluation in run.evaluations and (file := run.evaluations[evaluation].predictions) is not None
        }
        for first, second in _pairs(list(files)):
            about = {"evaluation": evaluation, "a": first, "b": second}
            try:
                made = compare(files[first], files[second], show=0)
            except StepJepaError as error:
                rows.append({**about, "metric": "", "why_not": str(error)})
                continue
            counts = (made.both, made.only_a, made.only_b, made.neither)
            rows.append({**about, "metric": made.a.metric, **_paired(made.difference, counts, f"{made.p:.3g}")})
    return rows


def _p(only_a: int, only_b: int) -> str:
    try:
        return f"{mcnemar_p(only_a, only_b):.3g}"
    except StepJepaError as error:  # SciPy is not installed
        return str(error)


def _paired(difference: Interval, counts: Sequence[int], p: str) -> dict[str, Any]:
    value, low, high = difference
    return {
        "difference": "-" if value is None else f"{100 * value:+.1f} points",
        "interval": "" if low is None or high is None else f"[{100 * low:+.1f}, {100 * high:+.1f}]",
        "p": p,
        "why_not": "",
        **dict(zip(("both", "only_a", "only_b", "neither"), counts, strict=True)),
    }


def _pairs(several: Sequence[T]) -> Iterator[tuple[T, T]]:
    if len(several) <= ALL_PAIRS:
        return combinations(several, 2)
    return ((several[0], other) for other in several[1:])


def prediction_sets(runs: Sequence[Run], most: int, reader: Reader) -> list[dict[str, Any]]:
    """The answers of every evaluation, for the page's script.

    Of each: ``name``; ``models`` (label, metric, and a letter for every question: ``r`` right, ``w`` wrong, ``u`` neither,
    ``-`` not asked), so that counts are of all questions; ``rows``, at most `most` questions with all texts, the same number
    of each pattern of right and wrong as far as there are.
    """
    made = []
    for evaluation in _names(runs):
        answers = {}
        for run in runs:
            file = run.evaluations[evaluation].predictions if evaluation in run.evaluations else None
            if file is not None:
                try:
                    answers[run.label] = read_predictions(file)
                except StepJepaError as error:
                    reader.say(str(error))
        if answers:
            made.append(_set(evaluation, answers, most))
    texts = sum(len(one["rows"]) * (2 + len(one["models"])) for one in made)
    longest = min(LONGEST, max(SHORTEST, TEXT_ROOM // max(texts, 1)))
    for one in made:
        for row in one["rows"]:
            row["question"], row["reference"] = cut(row["question"], longest), cut(row["reference"], longest)
            for answer in row["answers"]:
                if answer is not None:
                    answer["text"], answer["found"] = cut(answer["text"], longest), cut(answer["found"], longest)
    return made


def _set(name: str, answers: dict[str, list[Prediction]], most: int) -> dict[str, Any]:
    by_question = [{(one.index, one.question): one for one in found} for found in answers.values()]
    keys = sorted({key for found in by_question for key in found})
    letters = ["".join(_letter(found.get(key)) for key in keys) for found in by_question]
    rows = []
    for place in chosen(letters, most):
        given = [found.get(keys[place]) for found in by_question]
        known = next(one for one in given if one is not None)
        reference = known.gt_answer if known.gt_answer is not None else known.ground_truth
        rows.append(
            {"place": place, "index": known.index, "question": known.question, "reference": reference or ""}
            | {"answers": [None if one is None else _answer(one) for one in given]}
        )
    models = [
        {"label": label, "metric": next(iter(mapping(found[0].scores)), ""), "letters": line}
        for (label, found), line in zip(answers.items(), letters, strict=True)
    ]
    return {"name": name, "models": models, "rows": rows}


def _answer(one: Prediction) -> dict[str, Any]:
    return {"text": one.generated_response, "found": one.gen_answer or "", "stop": str(one.stop_reason or "")}


def _letter(one: Prediction | None) -> str:
    return "-" if one is None else "u" if one.correct is None else "r" if one.correct else "w"


def chosen(letters: Sequence[str], most: int) -> list[int]:
    """Places of at most `most` questions: of every pattern of right and wrong the first ones, in turns."""
    waiting: dict[tuple[str, ...], deque[int]] = defaultdict(deque)
    for place, pattern in enumerate(zip(*letters, strict=True)):
        waiting[pattern].append(place)
    taken: list[int] = []
    while waiting and len(taken) < most:
        for pattern in list(waiting):
            taken.append(waiting[pattern].popleft())
            if not waiting[pattern]:
                del waiting[pattern]
    return sorted(taken[:most])


def cut(text: str, longest: int) -> str:
    """A text with its middle left out where it is longer."""
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters are left out here ...]\n{text[-half:]}"


def _names(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(name for run in runs for name in run.evaluations))
