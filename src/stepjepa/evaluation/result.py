"""What comes of an evaluation, and how it is printed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepjepa.evaluation.predictions import Prediction
from stepjepa.generation.options import OVERWRITE


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
        lines += [f"{name:<14} {text}" for name, text in self._table()]
        return "\n".join(lines)

    def _table(self) -> Iterator[tuple[str, str]]:
        for name, summary in self.metrics.items():
            yield name, _metric_text(summary)
        if self.generation:
            yield from _generation_table(self.generation)
        skipped = sum(self.rows["skipped"].values())
        if skipped:
            yield "skipped", f"{skipped} of {self.rows['read']} rows, which count nowhere (see metrics.json)"
        for path in self.files:
            yield "unchanged" if self.already else "written", str(path)


def _generation_table(generation: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    refused, stop = generation["refused"], generation["did_not_stop"]
    if not stop["n"]:
        yield "refused", f"all {refused} prompts: the model has no room for them"
        return
    no_room = f"; {refused} prompts had no room" if refused else ""
    yield "did not stop", f"{_share_text(stop)} ({stop['count']} of {stop['n']}){no_room}"
    speed = generation["tokens_per_second"]
    per_second = f", {speed:.0f} per second" if speed else ""
    total = f"{generation['tokens']} in {generation['seconds']:.1f} s{per_second}"
    yield "tokens", f"{generation['mean_tokens']:.1f} per response; {total}"


def _metric_text(summary: Mapping[str, Any]) -> str:
    kind, value, n = summary["kind"], summary["value"], summary["n"]
    if kind == "accuracy":
        return f"{_share_text(summary)} ({summary['correct']} of {n})"
    if value is None or not math.isfinite(value):
        return f"no finite number ({n} rows)"
    ends = ""
    if summary.get("low") is not None:
        ends = f", 95 % interval {summary['low']:.4f} to {summary['high']:.4f}"
    if kind == "score":
        corpus = f"; of all texts together {summary['corpus']:.4f}" if "corpus" in summary else ""
        return f"{value:.4f}{ends}{corpus}"
    if kind == "count":
        return f"{value:.1f}{ends} ({n} answers)"
    return _loss_text(summary, ends)


def _loss_text(summary: Mapping[str, Any], ends: str) -> str:
    bits = f"{summary['bits_per_byte']:.4f} bits per byte, " if summary.get("bits_per_byte") else ""
    text = (
        f"{summary['value']:.4f} nats per token ({bits}perplexity {summary['perplexity']:.4g}, {summary['tokens']} tokens); "
        f"mean of {summary['n']} rows {summary['row_mean']:.4f}{ends}"
    )
    if summary["answers_truncated"]:
        text += f"; {summary['answers_truncated']} answers cut"
    skipped = sum(summary["skipped"].values())
    return f"{text}; {skipped} rows left out" if skipped else text


def _share_text(share: Mapping[str, Any]) -> str:
    return f"{100 * share['value']:.1f} %, 95 % interval {100 * share['low']:.1f} to {100 * share['high']:.1f}"
