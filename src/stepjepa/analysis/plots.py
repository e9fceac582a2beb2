"""Figures of training curves, with matplotlib (extra ``analysis``)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CURVES = (
    ("lm_loss", "LM loss (nats a token)"),
    ("cosine_similarity", "cosine of predicted and target view"),
    ("effective_rank", "effective rank of the targets"),
)
COLOURS = ("#4c566a", "#c8553d", "#2a7f9e", "#7a5195")


def plot_curves(histories: Mapping[str, Sequence[Mapping[str, Any]]], path: str | os.PathLike[str], title: str) -> None:
    """Draw the training curves of several runs side by side and write a PNG.

    Args:
        histories: run name -> the Trainer's ``log_history``.
        path: where to write; the file appears whole or not at all.
        title: of the figure.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(CURVES), figsize=(13, 3.8), constrained_layout=True)
    for axis, (key, label) in zip(axes, CURVES, strict=True):
        for (name, history), colour in zip(histories.items(), COLOURS, strict=False):
            points = [(entry["step"], entry[key]) for entry in history if key in entry]
            if points:
                axis.plot(*zip(*points, strict=True), label=name, color=colour, linewidth=1.6)
        axis.set_xlabel("optimizer step")
        axis.set_title(label, fontsize=10)
        axis.grid(alpha=0.25)
        if axis.lines:
            axis.legend(frameon=False, fontsize=9)
    axes[0].set_yscale("log")
    figure.suptitle(title, fontsize=11)
    temporary = Path(f"{path}.tmp")
    figure.savefig(temporary, format="png", dpi=130)
    pyplot.close(figure)
    os.replace(temporary, path)
