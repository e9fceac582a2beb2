"""Draws the figures of the README and the docs with the library itself: ``python docs/make_figures.py [NAME ...]``.

Without names all are made: `forest`, `forwards`, `labels`, `loss_scale`, `collapse`. The last two are measured
(`measured_figures.py`), with fixed seeds, on the processor alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import patches
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from stepjepa.data.encode import CheckedChat, EncodeOptions, encode_dataset, make_encoder
from stepjepa.data.sources import RowSource
from stepjepa.data.steps import StepRules, make_splitter
from stepjepa.data.tasks import generate_rows
from stepjepa.data.template import ChatRenderer
from stepjepa.inspect.figure import FAINT, INK, PAPER, SOURCE, TARGET, save_figure
from stepjepa.inspect.layout import RowForm, row_record, token_text
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
    ("predictors: after step 1, unseen by the rest", "predictor"),
    ("step 2 alone: the target", "target"),
)
FORWARDS = (
    ("packed", "one row, one pass: predictors and target are segments next to the chat"),
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


def record(inline: bool = False, labels: str = "assistant", texts: Sequence[str] = (QUESTION, ANSWER)) -> RowRecord:
    """One chat as training lays it out, K = 2, first pair."""
    renderer, splitter = ChatRenderer(tokenizer()), make_splitter("separator")
    method = objective_of(JEPAOptions(objective="step_jepa", predictors=2))
    options = EncodeOptions(objective=method, rules=StepRules(splitter), labels=labels)
    messages = [{"role": role, "content": text} for role, text in zip(("user", "assistant"), texts, strict=True)]
    row = {"messages": messages}
    store, _ = encode_dataset([row], tokenizer(), renderer, options)
    encoder = make_encoder(RowSource([row]), tokenizer(), renderer, options)
    spans = trunk_spans(encoder, CheckedChat.of(row, options, options.needs_steps, renderer))
    size = len(tokenizer())
    names = dict(enumerate(predictor_names(2), size))
    return row_record(store[0], RowForm((size, size + 1), names, inline), token_text(tokenizer()), spans)


@dataclass
class Lane:
    """A row of tokens, or the segments of one kind: its name, the first position, and the kinds of the L tokens."""

    name: str
    start: int
    kinds: list[str]


def lanes_of(forward: str) -> tuple[list[Lane], np.ndarray]:
    """The chat under a forward: its lanes, and (L, L) bool, True where the token of the row sees the token of the column."""
    row = record(inline=forward == "inline")
    if forward == "inline":
        return [Lane("chat", 0, list(row.kinds))], row.visible
    starts = [start for start, _ in row.sections if not row.names[start].startswith("trunk")]
    branch, target = starts
    trunk = Lane("trunk", 0, list(row.kinds[:branch]))
    predictors = Lane("branches", int(row.positions[branch]), list(row.kinds[branch:target]))
    copy = Lane("targets", int(row.positions[target]), list(row.kinds[target:]))
    if forward == "packed":
        return [trunk, predictors, copy], row.visible

    # Each segment is a row: what it sees of the trunk, then its own tokens.
    source = Lane("source", 0, ["source"] * predictors.start + predictors.kinds)
    rows = [Lane("chat", 0, trunk.kinds), source, Lane("target", copy.start, copy.kinds)]
    row_of = np.repeat(range(3), [len(lane.kinds) for lane in rows])  # (L,)
    order = np.arange(len(row_of))
    return rows, (row_of[:, None] == row_of) & (order[:, None] >= order)


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
    source, target = row.pairs[0].arrow
    for index, name, colour in ((source, "source", SOURCE), (target, "target", TARGET)):
        axis.annotate(
            name, (size, index + 0.5), (size + 1.5, index + 0.5), annotation_clip=False, va="center", fontsize=10,
            fontweight="bold", color=colour, arrowprops={"arrowstyle": "->", "color": colour},
        )  # fmt: skip
    handles = [patches.Patch(facecolor=COLOURS[kind], label=text) for text, kind in LEGEND]
    axis.legend(handles=handles, loc="upper right", fontsize=10, framealpha=1, title="a row sees the filled columns")
    return figure


def forwards_figure() -> Figure:
    """The same chat under the three forwards: where tokens are by position, and who sees whom."""
    tall = 3.0  # inches a forward
    total = tall * len(FORWARDS) + 0.7
    figure = Figure(figsize=(WIDTH, total), dpi=100, facecolor=PAPER)
    for number, (name, words) in enumerate(FORWARDS):
        lanes, visible = lanes_of(name)
        top = 0.1 + number * tall
        figure.text(0.02, 1 - top / total, f"{name}: {words}", va="top", fontsize=11, color=INK)
        strip = figure.add_axes((0.95 / WIDTH, 1 - (top + 2.32) / total, 4.2 / WIDTH, 1.65 / total))
        draw_lanes(strip, lanes)
        mask = figure.add_axes((5.5 / WIDTH, 1 - (top + 2.75) / total, 2.2 / WIDTH, 2.2 / total))
        draw_mask(mask, lanes, visible)
    kinds = (*LEGEND, ("question and step 1, once more", "source"))
    handles = [patches.Patch(facecolor=COLOURS[kind], label=text) for text, kind in kinds]
    figure.legend(handles=handles, loc="lower center", ncols=3, fontsize=9, frameon=False)
    return figure


def readouts(lanes: Sequence[Lane]) -> list[tuple[int, int, str]]:
    """(lane, token in it, colour) of the last predictor and of the last token of the target."""
    places = []
    for kinds, colour in ((("predictor",), SOURCE), (("target", "isolated"), TARGET)):
        places += [
            (number, max(index for index, kind in enumerate(lane.kinds) if kind in kinds), colour)
            for number, lane in enumerate(lanes)
            if set(kinds) & set(lane.kinds)
        ]
    return places


def draw_lanes(axis: Any, lanes: Sequence[Lane]) -> None:
    """Every lane by position, triangles at the readouts, and an arrow from the source to the target."""
    for number, lane in enumerate(lanes):
        cells = [(lane.start + index, 1) for index in range(len(lane.kinds))]
        colours = [COLOURS[kind] for kind in lane.kinds]
        axis.broken_barh(cells, (number, 0.45), facecolors=colours, edgecolor="white", linewidth=0.6)
        axis.text(-0.8, number + 0.22, lane.name, fontsize=9, ha="right", va="center", color=INK)
    ends = []
    for number, index, colour in readouts(lanes):
        ends.append((lanes[number].start + index + 0.5, number - 0.12))
        axis.plot(*ends[-1], marker="v", markersize=5, color=colour, clip_on=False)
    style = {"arrowstyle": "-|>", "color": FAINT, "connectionstyle": "arc3,rad=-0.25", "shrinkA": 4, "shrinkB": 5}
    axis.annotate("", ends[1], xytext=ends[0], arrowprops=style, annotation_clip=False)
    axis.set_xlim(0, max(lane.start + len(lane.kinds) for lane in lanes))
    axis.set_ylim(3, -0.3)
    axis.set_yticks([])
    axis.xaxis.tick_top()
    axis.set_xlabel("position", fontsize=9, color=FAINT, loc="left")
    axis.xaxis.set_label_position("top")
    axis.tick_params(labelsize=9, labelcolor=FAINT, color=FAINT)
    axis.spines[:].set_visible(False)


def draw_mask(axis: Any, lanes: Sequence[Lane], visible: np.ndarray) -> None:
    """The matrix alone: down who looks, across who is seen, in the colour of what is seen."""
    size = len(visible)
    starts = np.cumsum([0, *(len(lane.kinds) for lane in lanes)])
    seen = np.array([to_rgb(COLOURS[kind]) for lane in lanes for kind in lane.kinds])  # (L, 3)
    picture = np.where(visible[:, :, None], seen[None], 1.0)  # (L, L, 3)
    axis.imshow(picture, extent=(0, size, size, 0), interpolation="nearest")
    for number, index, colour in readouts(lanes):
        place = starts[number] + index + 0.5
        axis.annotate(
            "", (size, place), (size * 1.08, place), annotation_clip=False,
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
