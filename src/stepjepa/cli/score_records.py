"""The numbers of ``stepjepa score``: of each solution, of all of them, and in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from stepjepa.analysis.energies import EncodedSolution, Readings, shuffled_energies
from stepjepa.data.report import DataReport
from stepjepa.evaluation.best_of import Candidate, best_of, best_of_lines
from stepjepa.evaluation.intervals import mean
from stepjepa.evaluation.solutions import SolutionSet
from stepjepa.objectives.base import objective_of
from stepjepa.training.options import JEPAOptions


def solution_records(
    method: JEPAOptions,
    encoded: Sequence[EncodedSolution | None],
    readings: Readings,
    groups_P: np.ndarray,
    drawn: int,
    seed: int,
) -> list[dict[str, Any]]:
    """The numbers of every solution, by the definitions of docs/score.md.

    Args:
        groups_P: int, (P,): the question that each of the P pairs belongs to.
        drawn: targets that every prediction is compared with, drawn by `seed`.
    """
    own = shuffled = np.zeros(0)
    if len(groups_P):

        def distance(source_PD: torch.Tensor, target_PD: torch.Tensor) -> torch.Tensor:
            return objective_of(method).distances(source_PD, target_PD)

        views = readings.source_states, readings.target_states
        own = distance(*views).double().numpy()
        shuffled = shuffled_energies(distance, *views, groups_P, drawn, seed)
    found, place, pair = list[dict[str, Any]](), 0, 0
    for one in encoded:
        if one is None:
            found.append(_record((), {}, None, 0))
            continue
        energies = {}
        for step in one.sources:
            other = None if np.isnan(shuffled[pair]) else float(shuffled[pair])
            energies[step] = (float(own[pair]), other)
            pair += 1
        found.append(_record(one.steps, energies, readings.log_likelihoods[place], readings.tokens[place]))
        place += 1
    return found


def _record(
    steps: Sequence[str], energies: dict[int, tuple[float, float | None]], log_likelihood: float | None, tokens: int
) -> dict[str, Any]:
    listed = list[dict[str, Any]]()
    for number, text in enumerate(steps):
        own, other = energies.get(number, (None, None))
        relative = None if own is None or other is None else own - other
        listed.append({"step": number + 1, "text": text, "energy": own, "shuffled": other, "relative": relative})
    return {
        "num_steps": len(steps),
        **{name: mean(_values(listed, name)).value for name in ("energy", "shuffled", "relative")},
        "log_likelihood": log_likelihood,
        "log_likelihood_mean": None if log_likelihood is None else log_likelihood / tokens,
        "tokens": tokens,
        "steps": listed,
    }


def summary(lines: Sequence[dict[str, Any]], found: SolutionSet, report: DataReport) -> dict[str, Any]:
    """Means over the solutions that have a value, with their intervals, and what has none."""
    steps = [step for line in lines for step in line["steps"]]
    relative = _values(steps, "relative")
    names = ("energy", "shuffled", "relative", "log_likelihood_mean")
    means = {name: mean(_values(lines, name))._asdict() for name in names}
    return {
        "solutions": len(lines),
        "without_energy": sum(line["energy"] is None for line in lines),
        "why_without": {**report.rows_skipped, **report.examples_without_pairs},
        "truncated": report.answers_truncated,
        "rows": {"read": found.rows_read, "skipped": dict(found.skipped), "first_skipped": found.first_skipped},
        "pairs": len(_values(steps, "energy")),
        "nearer_than_shuffled": sum(value < 0 for value in relative) / len(relative) if relative else None,
        "means": means,
    }


def _values(records: Sequence[dict[str, Any]], name: str) -> list[float]:
    return [record[name] for record in records if record[name] is not None]


def chosen(lines: Sequence[dict[str, Any]], count: int) -> dict[str, Any]:
    """What every rule chooses; `lines` hold `count` solutions of each question, one question behind the other."""
    candidates = [
        Candidate(
            line["correct"],
            line["answer"],
            {
                **{name: line[name] for name in ("energy", "relative", "shuffled")},
                "likelihood_mean": line["log_likelihood_mean"],
                "likelihood_sum": line["log_likelihood"],
            },
        )
        for line in lines
    ]
    return best_of([candidates[start : start + count] for start in range(0, len(candidates), count)])


def result_lines(result: dict[str, Any]) -> list[str]:
    """The result in words."""
    means, without = result["means"], result["without_energy"]
    lines = [f"{'solutions':<14} {result['solutions']}, {result['pairs']} pairs of steps"]
    if without:
        lines[0] += f"; {without} without an energy"
    for name in ("energy", "shuffled", "relative", "log_likelihood_mean"):
        one = means[name]
        ends = "" if one["low"] is None else f", 95 % interval {one['low']:.5g} to {one['high']:.5g}"
        words = {"shuffled": "steps of other questions", "log_likelihood_mean": "nats a token"}.get(name, "")
        label = "log-likelihood" if name.startswith("log") else name
        if one["value"] is not None:
            lines.append(f"{label:<14} {one['value']:.5g}{ends}{f' ({words})' if words else ''}")
    if result["nearer_than_shuffled"] is not None:
        share = 100 * result["nearer_than_shuffled"]
        lines.append(f"{'':<14} {share:.1f} % of the predictions lie nearer to their own next step than to those")
    if result["truncated"]:
        lines.append(f"{'cut':<14} {result['truncated']} solutions at max_length; the rest of them is not scored")
    if "best_of" in result:
        lines += ["", *best_of_lines(result["best_of"])]
        if result["best_of"]["questions_with_fewer"]:
            lines.append(f"{result['best_of']['questions_with_fewer']} questions have fewer solutions and are left out")
        lines.append("")
    return lines
