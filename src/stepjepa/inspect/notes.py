"""What training does with a row and its picture does not show by itself."""

from __future__ import annotations

from collections.abc import Sequence

from stepjepa.data.examples import Example
from stepjepa.data.report import REASONS, DataReport


def without_pairs(source: str, objective: str, example: Example, report: DataReport) -> list[str]:
    """Why a row has no pair, before anything is drawn.

    Args:
        source: file or data set.
        objective: of the run.
        example: the first one that the row became.
        report: on the row.
    """
    if objective == "regular":
        return ["no pair: the objective regular makes none"]
    if example.pairs:
        return []
    whys = report.examples_without_pairs
    notes = [f"no pair: {REASONS.get(why, why)}; it trains as plain language modelling" for why in whys]
    if "fewer_than_two_steps" in whys:
        notes.append(f"(stepjepa check {source} says which step splitter finds steps)")
    return notes


def remarks(examples: Sequence[Example], report: DataReport, forward: str, max_length: int) -> list[str]:
    """What was left out or cut, and what the form of the forward means for the picture.

    Args:
        examples: what the row became.
        report: on the row.
        forward: ``packed``, ``inline`` or ``two_pass``.
        max_length: longest trunk in tokens.
    """
    notes, pairs = [], len(examples[0].pairs)
    if pairs:
        notes += [f"pairs left out: {count} ({REASONS.get(why, why)})" for why, count in report.pairs_dropped.items()]
    if len(examples) > 1:
        notes.append(f"the text is cut into {len(examples)} examples of up to {max_length} tokens; the first is shown")
    if report.answers_truncated:
        notes.append(f"the answer is cut at max_length {max_length}")
    if report.system_folded:
        notes.append("the template has no system role: the system message stands in the user's message")
    if forward == "two_pass":
        notes.append("forward two_pass: every segment is a row of its own; the LM loss is on the chat's")
    return notes
