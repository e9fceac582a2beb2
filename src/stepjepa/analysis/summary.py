"""What was found, as text: tables with a line for each model, collapse with what to do about it, energies of solutions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stepjepa.analysis.best_of import best_of_lines
from stepjepa.analysis.collapse import CollapseSign
from stepjepa.analysis.compare import Comparison
from stepjepa.analysis.numbers import MIN_ROWS, GeometryNumbers
from stepjepa.analysis.states import FINAL

ADVICE = (
    "What to do: keep the targets apart with --regularizer vicreg, --jepa_loss infonce, or no gradient into the targets "
    "(--target_grad false, --target_encoder ema); or lower --lbd. Then compare with --control shuffled: a good geometry by "
    "itself is no gain."
)
# Signs that are collapse by themselves; those that are so together with one of the others (`collapse.collapse_signs`).
_ALONE, _ALIKE = {"low_rank", "dead_dimensions"}, {"pairs_alike", "retrieval_at_chance"}
_MOST_STEPS = 9  # columns that fit beside a name


def collapsed(signs: Sequence[CollapseSign]) -> bool:
    """Whether signs amount to collapse: a low rank, dead dimensions, or a cone in which matched pairs are not told from the
    others. A cone alone or pairs alike alone are found in models that never saw a pair."""
    names = {sign.name for sign in signs}
    return bool(names & _ALONE) or ("cone" in names and bool(names & _ALIKE))


def tables(comparison: Comparison) -> list[str]:
    """The numbers in the layer that is shown, a line for each model, and the pairs by step where there are steps."""
    where = "after the final norm" if comparison.layer == FINAL else f"of layer {comparison.layer}"
    lines = [f"{comparison.n:,} pairs of {comparison.file}, states {where}", ""]
    shown = [(one.label, one.layers[comparison.layer]) for one in comparison.models]
    pairs = shown[0][1].pairs
    chance = ["chance", "", "", "", "", _share(pairs.chance_at_1), _share(pairs.chance_at_5), f"{pairs.chance_mrr:.3f}"]
    lines += _table(
        ["pairs", "cosine", "shuffled", "gap", "d'", "@1", "@5", "MRR"],
        [[label, *_pair_cells(numbers)] for label, numbers in shown] + [chance],
    )
    lines += ["", *_table(
        ["states (source, target)", "eff. rank", "uniformity", "own cosine", "top 100 s-t"],
        [[label, *_view_cells(numbers)] for label, numbers in shown],
    )]  # fmt: skip
    maps = [(label, numbers) for label, numbers in shown if numbers.linear_map is not None]
    if maps:
        lines += ["", *_table(
            ["linear map", "fitted error", "held-out error", "error of the mean", "held-out R2"],
            [[label, *_map_cells(numbers)] for label, numbers in maps],
        )]  # fmt: skip
    against = [(label, numbers) for label, numbers in shown if label != comparison.base]
    if comparison.base is not None and against:
        lines += ["", *_table(
            [f"against {comparison.base}", "variance", "CKA"],
            [[label, *_base_cells(numbers)] for label, numbers in against],
        )]  # fmt: skip
    return lines + _step_lines(comparison)


def collapse_lines(comparison: Comparison) -> list[str]:
    """What `collapse.collapse_signs` says of each model; a warning and what to do where it is collapse."""
    base = next((one for one in comparison.models if one.label == comparison.base), None)
    known = {(sign.name, sign.view) for sign in base.signs} if base else set()
    lines, any_collapsed = list[str](), False
    for one in comparison.models:
        if not one.signs:
            lines.append(f"{one.label}: no sign of collapse")
            continue
        if collapsed(one.signs):
            any_collapsed = any_collapsed or one is not base
            lines.append(f"Warning: {one.label} shows collapse:")
        else:
            lines.append(f"{one.label}: no collapse, but what models that never saw a pair may show:")
        for sign in one.signs:
            too = f"; {comparison.base} too" if one is not base and (sign.name, sign.view) in known else ""
            lines.append(f"  {sign.text}{too}")
    return [*lines, ADVICE] if any_collapsed else lines


def energy_lines(result: Mapping[str, Any]) -> list[str]:
    """The record of ``stepjepa analyze --energy`` in words."""
    without = f"; {result['without_energy']} without an energy" if result["without_energy"] else ""
    lines = [f"{'solutions':<14} {result['solutions']}, {result['pairs']} pairs of steps{without}"]
    units = {"shuffled": " (steps of other questions)", "log_likelihood_mean": " (nats a token)"}
    for name, one in result["means"].items():
        if one["value"] is not None:
            ends = "" if one["low"] is None else f", 95 % interval {one['low']:.5g} to {one['high']:.5g}"
            label = name.removesuffix("_mean").replace("_", "-")
            lines.append(f"{label:<14} {one['value']:.5g}{ends}{units.get(name, '')}")
    if result["nearer_than_shuffled"] is not None:
        share = 100 * result["nearer_than_shuffled"]
        lines.append(f"{'':<14} {share:.1f} % of the predictions are nearer to their own next step than to those")
    if result["truncated"]:
        lines.append(f"{'cut':<14} {result['truncated']} solutions at max_length; the rest of them is not scored")
    if "best_of" in result:
        fewer = result["best_of"]["questions_with_fewer"]
        left_out = [f"{fewer} questions have fewer solutions and are left out"] if fewer else []
        lines += ["", *best_of_lines(result["best_of"]), *left_out, ""]
    return lines


def _step_lines(comparison: Comparison) -> list[str]:
    steps = sorted({step for one in comparison.models for step in one.steps})
    if len(steps) < 2:
        return []
    shown = steps[:_MOST_STEPS]
    counts = {step: numbers.pairs for one in comparison.models for step, numbers in one.steps.items()}
    rows = [["pairs", *(str(counts[step].n) for step in shown)]]
    for name, cell in (("gap", lambda pairs: f"{pairs.gap:.4f}"), ("@1", lambda pairs: _share(pairs.retrieval_at_1))):
        for one in comparison.models:
            found = [one.steps.get(step) for step in shown]
            rows.append([f"{name}, {one.label}", *("-" if there is None else cell(there.pairs) for there in found)])
    rows.append(["@1, chance", *(_share(counts[step].chance_at_1) for step in shown)])
    more = f"and {len(steps) - _MOST_STEPS} later steps; " if len(steps) > _MOST_STEPS else ""
    last = f"({more}among the pairs of one step; steps with fewer than {MIN_ROWS} are left out)"
    return ["", *_table(["target step", *map(str, shown)], rows), last]


def _pair_cells(numbers: GeometryNumbers) -> Iterator[str]:
    pairs = numbers.pairs
    yield from (f"{value:.4f}" for value in (pairs.aligned_mean, pairs.shuffled_mean, pairs.gap))
    yield "-" if pairs.d_prime is None else f"{pairs.d_prime:.2f}"
    yield from (_share(pairs.retrieval_at_1), _share(pairs.retrieval_at_5), f"{pairs.mrr:.3f}")


def _view_cells(numbers: GeometryNumbers) -> Iterator[str]:
    views = numbers.source, numbers.target
    yield ", ".join(f"{view.effective_rank:.1f}" for view in views)
    yield ", ".join(f"{view.uniformity:.2f}" for view in views)
    yield ", ".join(f"{view.pairwise_cosine:.3f}" for view in views)
    yield f"{numbers.difference_top_100:.4g}"


def _map_cells(numbers: GeometryNumbers) -> Iterator[str]:
    found = numbers.linear_map
    assert found is not None
    through = " (rank = rows)" if found.rank == found.train_rows else ""
    yield f"{found.train_error:.4g}{through}"
    yield f"{found.test_error:.4g}"
    yield f"{found.mean_error:.4g}"
    yield "-" if found.test_r2 is None else f"{found.test_r2:.3f}"


def _base_cells(numbers: GeometryNumbers) -> Iterator[str]:
    views = numbers.source, numbers.target
    yield ", ".join("-" if view.variance_ratio is None else f"{view.variance_ratio:.3g}" for view in views)
    yield ", ".join("-" if view.base_cka is None else f"{view.base_cka:.3f}" for view in views)


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns two blanks apart, the first flush left, the others right; no blanks at the end of a line."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    return [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [head, *rows]
    ]
