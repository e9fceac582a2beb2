"""Predictions: a line for each question that was asked, from answers to numbers, as the evaluation writes it and the
comparison reads it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from math import comb
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from stepjepa.data.sources import RowSource
from stepjepa.errors import DataError
from stepjepa.evaluation.metrics import CONTENT_NLL, END_NLL, NLL, Metric, Verdict
from stepjepa.evaluation.statistics import mean, share
from stepjepa.generation import Reply
from stepjepa.generation.options import OVERWRITE
from stepjepa.generation.store import json_line
from stepjepa.utils.files import json_bytes
from stepjepa.utils.text import one_line

if TYPE_CHECKING:  # torch
    from stepjepa.evaluation.nll import AnswerLoss
    from stepjepa.evaluation.questions import Question

STOPPED, CUT, REFUSED = "stop", "length", "refused"
_LARGEST, _QUOTED = 1e100, 80
_PASS_AT = (5, 10, 100)  # k of pass@k besides 1 and all samples
_OPTIONAL = ("note", "answer_nll", "content_nll", "end_nll", "answer_tokens", "end_tokens", "sample")


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
    answer_nll: float | None = None
    content_nll: float | None = None
    end_nll: float | None = None
    answer_tokens: int | None = None
    end_tokens: int | None = None
    sample: int | None = None

    def record(self) -> dict[str, Any]:
        """As it is written."""
        values = asdict(self)
        return {name: value for name, value in values.items() if value is not None or name not in _OPTIONAL}


def stop_reason(reply: Reply) -> str:
    """How a response ended, as `Prediction.stop_reason` has it."""
    return REFUSED if reply.refused is not None else STOPPED if reply.stopped else CUT


def quoted(text: str | None) -> str:
    """A text in quotation marks, on one short line; none where there is none."""
    return "none" if text is None else repr(one_line(text, _QUOTED))


def record_lines(path: Path, records: Iterable[dict[str, Any]]) -> Iterable[bytes]:
    """Records as the contents of a file: JSONL, or one array for a ``.json`` file."""
    return [json_bytes(list(records), indent=1), b"\n"] if path.suffix == ".json" else map(json_line, records)


def read_predictions(path: Path, every_sample: bool = False) -> list[Prediction]:
    """Predictions of a file of JSON lines, or of one JSON array, of several to a question the first, or
    every one. Only ``question`` and
    ``generated_response``, or ``answer_nll``, must be there; `index` is then the position in the file.

    Raises:
        DataError: the file cannot be read, or a row is no prediction.
    """
    if not path.is_file():
        raise DataError(f"{path}: {'is a folder; give the predictions in it' if path.is_dir() else 'no such file'}")
    rows = RowSource(path, any_file=True)
    found: list[Prediction] = []
    for number, row in rows:
        trouble = _trouble(row)
        if trouble:
            raise DataError(f"{rows.place(number)}: is no prediction: {trouble}")
        if isinstance(row.get("sample"), int) and row["sample"] > 1 and not every_sample:
            continue
        known: dict[str, Any] = {one.name: row[one.name] for one in fields(Prediction) if row.get(one.name) is not None}
        known |= {name: str(known[name]) for name in ("gt_answer", "gen_answer", "ground_truth") if name in known}
        # NaN is written as null.
        scores = {name: math.nan if value is None else value for name, value in known.get("scores", {}).items()}
        found.append(Prediction(**{"index": len(found), **known, "scores": scores}))
    if not found:
        raise DataError(f"{path}: holds no predictions")
    return found


def _trouble(row: Any) -> str:
    """Why a row is no prediction; empty where it is one."""
    if not isinstance(row, dict):
        return "expected an object as stepjepa evaluate writes it"
    answered = "generated_response" in row or NLL not in row
    for name in ("question", "generated_response") if answered else ("question",):
        if not isinstance(row.get(name), str):
            return f"it has no text {name!r}"
    if not _is_number(row.get(NLL)):
        return f"{NLL} is {row[NLL]!r}"
    for name in ("index", "tokens", "answer_tokens", "end_tokens"):
        if isinstance(row.get(name), float) or not _is_number(row.get(name)):
            return f"{name} is {row[name]!r}"
    if not isinstance(row.get("correct"), (bool, type(None))):
        return f"correct is {row['correct']!r}"
    scores = row.get("scores", {})
    if not isinstance(scores, dict) or not all(map(_is_number, scores.values())):
        return f"scores is {scores!r}, not the number of each metric"
    return ""


def _is_number(value: Any) -> bool:
    """Whether it is a number that sums and squares can be made of; NaN is one, and so is none at all."""
    return value is None or (type(value) in (int, float) and not abs(value) > _LARGEST)


@dataclass
class EvaluationResult:
    """What came of an evaluation; printed, the metrics with their intervals and the files.

    Attributes:
        metrics: metric -> ``value``, ``low`` and ``high`` (95 %), ``n`` and what else belongs to its kind.
        generation: share that did not stop, tokens, seconds; empty where nothing was generated.
        rows: how many rows were read, evaluated, and skipped for which reason.
        predictions: one for each question, or each of its samples, in order; empty where they were written before.
        answer_nll: of each question its index, text, nats per token of the reference answer and its tokens.
        record: what ``metrics.json`` holds; empty where no file is written.
        files: those that are written.
        already: whether all was done before.
    """

    metrics: dict[str, dict[str, Any]]
    generation: dict[str, Any]
    rows: dict[str, Any]
    predictions: list[Prediction] = field(default_factory=list)
    answer_nll: list[dict[str, Any]] = field(default_factory=list)
    record: dict[str, Any] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)
    already: bool = False

    def value(self, name: str) -> float | None:
        """The value of a metric."""
        return self.metrics[name]["value"]

    def __str__(self) -> str:
        lines = [f"complete already; {OVERWRITE} evaluates again"] if self.already else []
        return "\n".join([*lines, *(f"{name:<14} {text}" for name, text in self._table())])

    def _table(self) -> Iterator[tuple[str, str]]:
        for name, found in self.metrics.items():
            yield name, _metric_text(found)
        if self.generation:
            made, stop = self.generation, self.generation["did_not_stop"]
            if not stop["n"]:
                yield "refused", f"all {made['refused']} prompts: the model has no room for them"
            else:
                refused = f"; {made['refused']} prompts had no room" if made["refused"] else ""
                yield "did not stop", f"{_share_text(stop)} ({stop['count']} of {stop['n']}){refused}"
                speed = f", {made['tokens_per_second']:.0f} per second" if made["tokens_per_second"] else ""
                total = f"{made['tokens']} in {made['seconds']:.1f} s{speed}"
                yield "tokens", f"{made['mean_tokens']:.1f} per response; {total}"
        skipped = sum(self.rows["skipped"].values())
        if skipped:
            yield "skipped", f"{skipped} of {self.rows['read']} rows, which count nowhere (see metrics.json)"
        yield from (("unchanged" if self.already else "written", str(path)) for path in self.files)


def _metric_text(found: Mapping[str, Any]) -> str:
    value, ends = found["value"], ""
    if found["kind"] == "accuracy":
        return f"{_share_text(found)} ({found['correct']} of {found['n']})"
    if found.get("low") is not None:
        ends = f", 95 % interval {found['low']:.4f} to {found['high']:.4f}"
    if found["kind"] == "score" and value is not None:
        corpus = f"; of all texts together {found['corpus']:.4f}" if "corpus" in found else ""
        return f"{value:.4f}{ends}{corpus}"
    if found["kind"] == "count" and value is not None:
        return f"{value:.1f}{ends} ({found['n']} answers)"
    if value is None or not math.isfinite(value):
        return f"no finite number ({found['n']} rows)"
    skipped = sum(found["skipped"].values())
    cut = f"; {found['answers_truncated']} answers cut" if found["answers_truncated"] else ""
    cut += f"; {skipped} rows left out" if skipped else ""
    bits = f"{found['bits_per_byte']:.4f} bits per byte, " if found.get("bits_per_byte") else ""
    return (
        f"{value:.4f} nats per token ({bits}perplexity {found['perplexity']:.4g}, {found['tokens']} tokens); "
        f"mean of {found['n']} rows {found['row_mean']:.4f}{ends}{cut}"
    )


def _share_text(found: Mapping[str, Any]) -> str:
    return f"{100 * found['value']:.1f} %, 95 % interval {100 * found['low']:.1f} to {100 * found['high']:.1f}"


def predictions_of(
    answered: Sequence[tuple[Question, Reply]],
    samples: int,
    losses: Mapping[int, AnswerLoss],
    metrics: Sequence[Metric],
    step: Callable[[int], object],
) -> list[Prediction]:
    """A record for each reply, `samples` to each question; `step` is called with how many more were scored.

    Raises:
        DataError: a function of the user's failed.
    """
    found = []
    for number, (question, reply) in enumerate(answered):
        loss = losses.get(question.index)
        verdicts = [_verdict(metric, reply, question) for metric in metrics]
        first = verdicts[0]
        binary = metrics[0].kind == "accuracy" or (metrics[0].is_custom and first.score in (0.0, 1.0))
        one = Prediction(
            question.index,
            question.text,
            question.ground_truth,
            reply.text,
            first.gold,
            first.answer,
            first.score == 1.0 if binary else None,
            stop_reason(reply),
            reply.new_tokens,
            {metric.name: verdict.score for metric, verdict in zip(metrics, verdicts, strict=True)},
            first.note or None,
        )
        if samples > 1:
            one.sample = number % samples + 1
        if loss is not None:
            one.answer_nll, one.answer_tokens = loss.of(NLL), loss.tokens
            one.content_nll, one.end_nll = loss.of(CONTENT_NLL), loss.of(END_NLL)
            one.end_tokens = loss.end_tokens
        found.append(one)
        step(1)
    return found


def _verdict(metric: Metric, reply: Reply, question: Question) -> Verdict:
    """A metric's verdict; a refused request is wrong."""
    if reply.refused is None:
        return scored(metric, reply.text, question, reply.stopped)
    gold = None if metric.is_custom else scored(metric, "", question).gold
    return Verdict(math.nan if metric.kind == "count" else 0.0, gold, None, reply.refused)


def scored(metric: Metric, text: str, question: Question, stopped: bool = False) -> Verdict:
    """A metric's verdict on a text, which the model ended by itself if it `stopped`.

    Raises:
        DataError: the row holds nothing to compare with, or a user's function failed.
    """
    try:
        return metric.score_response(text, question.row, stopped)
    except DataError as error:
        raise DataError(f"{question.place}: {error}") from None


def summarise(
    metrics: Sequence[Metric], predictions: Sequence[Prediction], questions: Sequence[Question]
) -> dict[str, dict[str, Any]]:
    """What each metric comes to: a share with its Wilson interval, or a mean with its t interval.

    Both are over questions: one with several samples counts with their mean, which is its pass@1, and in a further summary
    with its pass@k. A function of the user's that has returned nothing but yes and no is a share too.
    """
    summary: dict[str, dict[str, Any]] = {}
    n, samples = len(questions), len(predictions) // max(len(questions), 1)
    for metric in metrics:
        scores = [prediction.scores[metric.name] for prediction in predictions]
        groups = [scores[begin : begin + samples] for begin in range(0, len(scores), samples)]
        if metric.kind == "count":  # NaN: the metric says nothing about this answer
            groups = [[score for score in group if not math.isnan(score)] or [math.nan] for group in groups]
        binary = metric.kind == "accuracy" or (metric.is_custom and all(score in (0.0, 1.0) for score in scores))
        found = {metric.name: [fmean(group) for group in groups]}
        for k in sorted({samples, *(k for k in _PASS_AT if k < samples)}) if binary and samples > 1 else ():
            found[f"{metric.name} pass@{k}"] = [pass_at_k(samples, group.count(1.0), k) for group in groups]
        for name, values in found.items():
            if binary and all(value in (0.0, 1.0) for value in values):
                right = values.count(1.0)
                summary[name] = {"kind": "accuracy", **share(right, n)._asdict(), "correct": right, "n": n}
            elif metric.kind == "count":
                counted = [value for value in values if not math.isnan(value)]
                summary[name] = {"kind": "count", **mean(counted)._asdict(), "n": len(counted)}
            else:
                summary[name] = {"kind": "score", **mean(values)._asdict(), "n": n}
        rows = [question.row for question in questions for _ in range(samples)]
        corpus = metric.corpus_score([one.generated_response for one in predictions], rows)
        if corpus is not None:
            summary[metric.name]["corpus"] = corpus
    return summary


def pass_at_k(n: int, right: int, k: int) -> float:
    """The chance that one of k answers is right, of n of which `right` are: 1 - C(n - right, k) / C(n, k), which is unbiased
    (Chen et al. 2021, equation 1)."""
    return 1.0 - comb(n - right, k) / comb(n, k)


def generation_summary(predictions: Sequence[Prediction], seconds: float) -> dict[str, Any]:
    """How the answers ended, how long they are, how long they took; empty without any."""
    if not predictions:
        return {}
    answered = [one for one in predictions if one.stop_reason != REFUSED]
    cut = sum(one.stop_reason == CUT for one in answered)
    tokens = sum(one.tokens or 0 for one in answered)
    return {
        "did_not_stop": {**share(cut, len(answered))._asdict(), "count": cut, "n": len(answered)},
        "refused": len(predictions) - len(answered),
        "mean_tokens": tokens / len(answered) if answered else None,
        "tokens": tokens,
        "seconds": round(seconds, 3),
        "tokens_per_second": round(tokens / seconds, 1) if seconds else None,
    }
