"""Draws the figures of the README and the docs from the library itself: ``python docs/make_figures.py``."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import patches, pyplot
from matplotlib.colors import to_rgb

from stepjepa.data.chat import ChatRenderer
from stepjepa.data.encode import EncodeOptions, encode_dataset
from stepjepa.data.steps import SeparatorSplitter
from stepjepa.data.synthetic import generate_rows
from stepjepa.inspect.model import RowRecord, row_record, token_text
from stepjepa.modeling.presets import train_tokenizer

ASSETS = Path(__file__).parent / "assets"
QUESTION = "Mia has 12 apples. She buys 5 and gives away 3."
ANSWER = "12 + 5 = 17.\n\n17 - 3 = 14.\n\n\\boxed{14}"
COLOURS = {
    "prompt": "#c3cad6",
    "answer": "#8fb8de",
    "source_end": "#2f6db3",
    "original": "#8fb8de",
    "predictor": "#e2853d",
    "target": "#67a96b",
}
LEGEND = (
    ("question (no label)", "prompt"),
    ("answer (LM loss)", "answer"),
    ("predictors: behind step 1, unseen by the rest", "predictor"),
    ("step 2 alone: the target", "target"),
)


def example_record() -> RowRecord:
    """One chat as a packed row, K = 2, first pair."""
    texts = [message["content"] for row in generate_rows(2000, seed=1) for message in row["messages"]]
    tokenizer = train_tokenizer([*texts, *[QUESTION, ANSWER] * 200], 512)
    options = EncodeOptions("step_jepa", SeparatorSplitter())
    rows = [{"question": QUESTION, "answer": ANSWER}]
    store, _ = encode_dataset(rows, tokenizer, ChatRenderer(tokenizer), options)
    return row_record([store[0]], 2, token_text(tokenizer), vocabulary=len(tokenizer))


def forest_figure(record: RowRecord, path: Path) -> None:
    """Who sees whom, with the row's tokens along both sides and the two readouts."""
    size = len(record)
    figure, axis = pyplot.subplots(figsize=(9.2, 9.6), constrained_layout=True)
    for q in range(size):
        for k in range(size):
            face = to_rgb(COLOURS[record.kinds[k]]) if record.visible[q, k] else (0.97, 0.97, 0.97)
            axis.add_patch(patches.Rectangle((k, q), 0.94, 0.94, facecolor=face, linewidth=0))
    labels = [text.replace("\n", "\u21b5").replace(" ", "\u00b7") for text in record.texts]
    axis.set_xlim(0, size)
    axis.set_ylim(size, 0)
    axis.set_aspect("equal")
    ticks = [place + 0.5 for place in range(size)]
    axis.set_xticks(ticks, labels, rotation=90, fontsize=7.5, family="monospace")
    axis.set_yticks(ticks, labels, fontsize=7.5, family="monospace")
    axis.xaxis.tick_top()
    axis.tick_params(length=0)
    for tick_labels in (axis.get_xticklabels(), axis.get_yticklabels()):
        for label, kind in zip(tick_labels, record.kinds, strict=True):
            label.set_bbox({"facecolor": COLOURS[kind], "edgecolor": "none", "pad": 0.8, "alpha": 0.55})
    for spine in axis.spines.values():
        spine.set_visible(False)
    pair = record.pairs[0]
    for index, name in ((pair.source.index, "source state"), (pair.target.index, "target state")):
        axis.annotate(
            name,
            (size, index + 0.5),
            (size + 0.6, index + 0.5),
            annotation_clip=False,
            va="center",
            fontsize=9,
            fontweight="bold",
            arrowprops={"arrowstyle": "->", "color": "#333333"},
        )
    handles = [patches.Patch(facecolor=COLOURS[kind], label=text) for text, kind in LEGEND]
    axis.legend(
        handles=handles, loc="upper right", fontsize=9, frameon=True, framealpha=1, title="column is seen by row"
    )
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


if __name__ == "__main__":
    ASSETS.mkdir(exist_ok=True)
    forest_figure(example_record(), ASSETS / "forest.png")
