"""Signs of collapse in the logs of runs and in the numbers of analyses, in the words of `stepjepa.analysis.collapse`.

The log knows the targets of its training batches alone: their spread, their effective rank, and the cosine of matched pairs.
The spread gives the mean cosine of two targets: ``target_std ** 2 = 1 - mean cosine of two different ones`` for unit-length
states (`stepjepa.training.meter.collapse_signs`).
"""

from __future__ import annotations

from typing import Any

from stepjepa.analysis.collapse import CONE_COSINE, LOW_RANK, RANK_ROWS, CollapseSign
from stepjepa.analysis.summary import ADVICE, collapsed
from stepjepa.report.chart import history_points
from stepjepa.report.files import entries, mapping, number
from stepjepa.report.reading import Run

__all__ = ["ADVICE", "analysed_signs", "logged_signs"]


def logged_signs(run: Run) -> dict[str, Any] | None:
    """First and last values of what the log says of the targets, with the signs in the last; None where it says nothing.

    Returns:
        ``rows``: (name, first, last); ``signs``: sentences; ``collapsed``: whether they amount to collapse by themselves;
        ``step``: of the last entry; ``by_design``: whether the targets are one vector because
        the run is a control.
    """
    rows = []
    for key in ("cosine_similarity", "target_std", "effective_rank"):
        points = history_points(run.history, key)
        if points:
            rows.append((key, points[0][1], points[-1][1]))
    if not rows:
        return None
    last = {key: value for key, _, value in rows}
    pairs = history_points(run.history, "num_pairs")
    signs: list[CollapseSign] = []
    by_design = run.settings.get("control") == "random"  # the targets are one vector from the start
    if by_design:
        last = {}
    rank, spread = last.get("effective_rank"), last.get("target_std")
    if rank is not None and rank < LOW_RANK and (not pairs or pairs[-1][1] >= RANK_ROWS):
        text = f"target states have an effective rank of {rank:.2f} (below {LOW_RANK})"
        signs.append(CollapseSign("low_rank", "target", rank, LOW_RANK, text))
    if spread is not None and 1 - spread**2 >= CONE_COSINE:
        cosine = 1 - spread**2
        text = (
            f"target states point in one direction: two targets have a cosine of {cosine:.4f} on average, from target_std "
            f"{spread:.3f} (from {CONE_COSINE}; plain models .76 to .96)"
        )
        signs.append(CollapseSign("cone", "target", cosine, CONE_COSINE, text))
    steps = [points[-1][0] for key, *_ in rows if (points := history_points(run.history, key))]
    return {
        "rows": rows,
        "signs": [sign.text for sign in signs],
        "collapsed": collapsed(signs),
        "step": max(steps),
        "by_design": by_design,
    }


def analysed_signs(numbers: dict[str, Any]) -> list[tuple[str, list[str], bool]]:
    """(model, signs in sentences, whether they amount to collapse) of a ``numbers.json``."""
    found = []
    for label, model in mapping(numbers.get("models")).items():
        signs = [sign for one in entries(mapping(model).get("collapse")) if (sign := _sign(one)) is not None]
        found.append((str(label), [sign.text for sign in signs], collapsed(signs)))
    return found


def _sign(record: Any) -> CollapseSign | None:
    one = mapping(record)
    text, name = one.get("text"), one.get("name")
    if not isinstance(text, str) or not isinstance(name, str):
        return None
    value, threshold = (number(one.get(key)) or 0.0 for key in ("value", "threshold"))
    return CollapseSign(name, str(one.get("view")), value, threshold, text)
