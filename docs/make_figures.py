"""Draws the figures of the README and the docs with the library itself: ``python docs/make_figures.py [NAME ...]``.

Without names all are made: `forest`, `forwards`, `labels`, `loss_scale`, `collapse`. The last two are measured
(`measured_figures.py`), with fixed seeds, on the processor alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import patches
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from stepjepa.analysis.plots import save_figure
from stepjepa.data.encode import EncodeOptions, encode_dataset, make_encoder, read_chat
from stepjepa.data.sources import RowSource
from stepjepa.data.steps import StepRules, make_splitter
from stepjepa.data.tasks import generate_rows
from stepjepa.data.template import ChatRenderer
from stepjepa.inspect.figure import FAINT, INK, PAPER, SOURCE, TARGET, draw_strip, strip_height
from stepjepa.inspect.layout import RowForm, row_records, token_text
from stepjepa.inspect.record import KINDS, RowRecord
from stepjepa.inspect.view import trunk_spans
from stepjepa.modeling.extras import predictor_names
from stepjepa.modeling.load import train_tokenizer
from stepjepa.objectives.base import objective_of
from stepjepa.training.options import JEPAOptions

ASSETS = Path(__file__).parent / "assets"
COLOURS = {name: kind.light for name, kind in KINDS.items()}
WIDTH = 8.0  # inches; 800 pixels at 100 dots an inch
QUESTION = "Mia has 12 apples. She buys 5 and gives away 3."
ANSWER = "12 + 5 = 17.\n\n17 - 3 = 14.\n\n\\boxed{14}"
SHORT = ("Mia has 9 pens. She buys 2.", "9 + 2 = 11.\n\nSo 11.")
LEGEND = (
    ("question (no label)", "prompt"),
    ("answer (LM loss)", "answer"),
    ("end of step 1", "source_end"),
    ("step 2, where it stands", "original"),
    ("predictors: behind step 1, unseen by the rest", "predictor"),
    ("step 2 alone: the target", "target"),
)
FORWARDS = (
    ("packed", "one row, one pass: predictors and target hang beside the chat"),
    ("two_pass", "the chat; then source with predictors, and target, each in a row of its own"),
    ("inline", "one pass over one sequence: predictors and isolated step 2 inside the chat"),
)
LABELS = (
    ("assistant", "answers and their end of turn"),
    ("all", "every token but the first"),
    ("reference", "what the published code trains on"),
)


@cache
def tokenizer() -> Any:
    """A small tokenizer that knows the words of the pictures."""
    texts = [message["content"] for row in generate_rows(2000, seed=1) for message in row["messages"]]
    return train_tokenizer([*texts, *[QUESTION, ANSWER, *SHORT] * 200], 512)


def record(forward: str = "packed", labels: str = "assistant", texts: Sequence[str] = (QUESTION, ANSWER)) -> RowRecord:
    """One chat as training lays it out, K = 2, first pair."""
    renderer, splitter = ChatRenderer(tokenizer()), make_splitter("separator")
    method = objective_of(JEPAOptions(objective="step_jepa", predictors=2))
    options = EncodeOptions(objective=method, rules=StepRules(splitter), labels=labels)
    messages = [{"role": role, "content": text} for role, text in zip(("user", "assistant"), texts, strict=True)]
    row = {"messages": messages}
    store, _ = encode_dataset([row], tokenizer(), renderer, options)
    encoder = make_encoder(RowSource([row]), tokenizer(), renderer, options)
    spans = [trunk_spans(encoder, read_chat(row, renderer, options))]
    size = len(tokenizer())
    (found,) = row_records(
        [store[0]], RowForm((size, size + 1), tuple(predictor_names(2)), size, forward), token_text(tokenizer()), spans
    )
    return found


def forest_figure() -> Figure:
    """Who sees whom, with the row's tokens along both sides and the two readouts."""
    row = record()
    size = len(row)
    figure = Figure(figsize=(WIDTH, 8.0), layout="constrained", dpi=100, facecolor=PAPER)
    axis = figure.subplots()
    for q in range(size):
        for k in range(size):
            face = COLOURS[row.kinds[k]] if row.visible[q, k] else "#f7f7f7"
            axis.add_patch(patches.Rectangle((k, q), 0.94, 0.94, facecolor=face, linewidth=0))
    labels = [shown(text) for text in row.texts]
    axis.set_xlim(0, size)
    axis.set_ylim(size, 0)
    axis.set_aspect("equal")
    ticks = [place + 0.5 for place in range(size)]
    axis.set_xticks(ticks, labels, rotation=90, fontsize=6.5, family="monospace")
    axis.set_yticks(ticks, labels, fontsize=6.5, family="monospace")
    axis.xaxis.tick_top()
    axis.tick_params(length=0)
    for tick_labels in (axis.get_xticklabels(), axis.get_yticklabels()):
        for label, kind in zip(tick_labels, row.kinds, strict=True):
            label.set_bbox({"facecolor": COLOURS[kind], "edgecolor": "none", "pad": 0.6, "alpha": 0.45})
    axis.spines[:].set_visible(False)
    pair = row.pairs[0]
    for index, name, colour in ((pair.source.index, "source", SOURCE), (pair.target.index, "target", TARGET)):
        axis.annotate(
            name, (size, index + 0.5), (size + 1.5, index + 0.5), annotation_clip=False, va="center", fontsize=10,
            fontweight="bold", color=colour, arrowprops={"arrowstyle": "->", "color": colour},
        )  # fmt: skip
    handles = [patches.Patch(facecolor=COLOURS[kind], label=text) for text, kind in LEGEND]
    axis.legend(handles=handles, loc="upper right", fontsize=10, framealpha=1, title="a row sees the filled columns")
    return figure


def forwards_figure() -> Figure:
    """The same chat under the three forwards: where tokens stand, and who sees whom."""
    rows = [(name, words, record(name)) for name, words in FORWARDS]
    heights = [max(strip_height(row), 2.3) + 0.75 for _, _, row in rows]
    total = sum(heights) + 0.55
    figure = Figure(figsize=(WIDTH, total), dpi=100, facecolor=PAPER)
    top = 0.1
    for (name, words, row), height in zip(rows, heights, strict=True):
        figure.text(0.02, 1 - top / total, f"{name}: {words}", va="top", fontsize=11, color=INK)
        tall = strip_height(row)
        strip = figure.add_axes((0.95 / WIDTH, 1 - (top + 0.35 + tall) / total, 4.2 / WIDTH, tall / total))
        strip.spines[:].set_visible(False)
        strip.set_xticks([])
        strip.set_yticks([])
        draw_strip(strip, row)
        mask = figure.add_axes((5.5 / WIDTH, 1 - (top + 0.4 + 2.3) / total, 2.3 / WIDTH, 2.3 / total))
        draw_mask(mask, row)
        top += height
    kinds = (*LEGEND, ("question and step 1, once more", "source"))
    handles = [patches.Patch(facecolor=COLOURS[kind], label=text) for text, kind in kinds]
    figure.legend(handles=handles, loc="lower center", ncols=3, fontsize=9, frameon=False)
    return figure


def draw_mask(axis: Any, row: RowRecord) -> None:
    """The matrix alone: down who looks, across who is seen, in the colour of what is seen."""
    size = len(row)
    seen = np.array([to_rgb(COLOURS[kind]) for kind in row.kinds])  # (L, 3)
    picture = np.where(row.visible[:, :, None], seen[None], 1.0)  # (L, L, 3)
    axis.imshow(picture, extent=(0, size, size, 0), interpolation="nearest")
    for pair in row.pairs:
        for index, colour in ((pair.source.index, SOURCE), (pair.target.index, TARGET)):
            axis.annotate(
                "", (size, index + 0.5), (size * 1.08, index + 0.5), annotation_clip=False,
                arrowprops={"arrowstyle": "-|>", "color": colour},
            )  # fmt: skip
    axis.set_xticks([])
    axis.set_yticks([])
    axis.spines[:].set_color(FAINT)
    axis.set_title("who sees whom", fontsize=9, color=FAINT, pad=3)


def labels_figure() -> Figure:
    """The trunk of one chat three times, with the tokens filled that the LM loss predicts."""
    figure = Figure(figsize=(WIDTH, 3.1), dpi=100, facecolor=PAPER)
    axis = figure.add_axes((0.11, 0.02, 0.88, 0.62))
    for line, (name, words) in enumerate(LABELS):
        row = record(labels=name, texts=SHORT)
        length = next(start for start, _ in row.sections if not row.names[start].startswith("trunk"))
        for place in range(length):
            colour = COLOURS["answer"] if row.labelled[place] else COLOURS["prompt"]
            hatch = "" if row.labelled[place] else "///"
            axis.add_patch(
                patches.Rectangle(
                    (place, line), 0.94, 0.45, facecolor=colour, hatch=hatch, edgecolor="white", linewidth=0
                )
            )
            if line == 0:
                axis.text(
                    place + 0.47, -0.08, shown(row.texts[place]), rotation=90, fontsize=9, ha="center", va="bottom",
                    family="monospace", color=INK, clip_on=False, parse_math=False,
                )  # fmt: skip
        axis.text(-0.3, line + 0.22, name, fontsize=10, ha="right", va="center", color=INK)
        count = int(row.labelled[:length].sum())
        axis.text(0, line + 0.52, f"{words}: {count} of {length} tokens", fontsize=9, va="top", color=FAINT)
    axis.set_xlim(0, length)
    axis.set_ylim(len(LABELS), 0)
    axis.set_axis_off()
    handles = [
        patches.Patch(facecolor=COLOURS["answer"], label="the LM loss predicts it"),
        patches.Patch(facecolor=COLOURS["prompt"], hatch="///", edgecolor="white", label="context alone"),
    ]
    figure.legend(handles=handles, loc="upper left", ncols=2, fontsize=9, frameon=False)
    return figure


def shown(text: str) -> str:
    """A token's text with its spaces and line breaks made visible."""
    return text.replace("\n", "\u21b5").replace(" ", "\u00b7")


def measured(name: str) -> Figure:
    """A figure of `measured_figures`, which loads torch."""
    import measured_figures

    return getattr(measured_figures, f"{name}_figure")()


FIGURES: dict[str, Callable[[], Figure]] = {
    "forest": forest_figure,
    "forwards": forwards_figure,
    "labels": labels_figure,
    "loss_scale": lambda: measured("loss_scale"),
    "collapse": lambda: measured("collapse"),
}


def main(names: Sequence[str]) -> None:
    """Write the figures that are named, or all."""
    for name in names or FIGURES:
        save_figure(FIGURES[name](), ASSETS / f"{name}.png", dpi=120)
        print(ASSETS / f"{name}.png", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
