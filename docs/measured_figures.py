"""The two figures of the concepts page that are measured: `make_figures.py` draws them.

Both train the preset `tiny` from scratch on built-in problems, in float32 on the processor.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from transformers import TrainerCallback

from stepjepa import JEPAConfig, JEPATrainer
from stepjepa.analysis.plots import legend_below, look, new_figure
from stepjepa.data.tasks import generate_split, make_task
from stepjepa.modeling.load import load_model, load_tokenizer
from stepjepa.training.datasets import encode
from stepjepa.training.metrics import collapse_signs

EASY = make_task("arithmetic", max_steps=3)
STEPS, BATCH, HELD_OUT, EVERY = 200, 8, 128, 20
ARMS: dict[str, dict[str, Any]] = {
    "cosine": {},
    "cosine, stop-gradient": {"target_grad": False},
    "cosine + VICReg": {"regularizer": "vicreg"},
    "InfoNCE": {"jepa_loss": "infonce"},
}
ACCUMULATIONS = (1, 2, 4, 8)


def trainer_of(rows: Sequence[dict[str, Any]], callbacks: Sequence[Any] = (), **options: Any) -> JEPATrainer:
    """A trainer of the preset `tiny`, Step-JEPA with K = 2; it writes nothing that stays."""
    texts = (message["content"] for row in rows for message in row["messages"])
    tokenizer = load_tokenizer("tiny", texts)
    config = JEPAConfig(
        output_dir=tempfile.mkdtemp(), objective="step_jepa", step_splitter="separator", save_strategy="no",
        learning_rate=2e-3, adam_beta2=0.95, disable_tqdm=True, seed=0, use_cpu=True, **options,
    )  # fmt: skip
    return JEPATrainer(
        load_model("tiny", tokenizer, seed=0), config, train_dataset=list(rows), processing_class=tokenizer,
        callbacks=list(callbacks),
    )  # fmt: skip


class HeldOut(TrainerCallback):
    """Every `EVERY` steps: what the states of held-out first pairs look like."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows
        self.found: list[dict[str, float]] = []
        self.trainer: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.measure(0)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % EVERY == 0:
            self.measure(state.global_step)

    def measure(self, step: int) -> None:
        """Effective rank of the targets; cosines of matched pairs and of the same pairs with targets shuffled."""
        trainer = self.trainer
        store, _ = encode(self.rows, trainer.processing_class, trainer.args)
        batch = trainer.data_collator([store[i] for i in range(len(store))])
        training = trainer.model.training
        trainer.model.eval()
        with torch.no_grad():
            states = trainer.model(batch=batch)
        trainer.model.train(training)
        source, target = states.source_states.float(), states.target_states.float()  # (P, D)
        self.found.append(
            {
                "step": step,
                "rank": collapse_signs([target])["effective_rank"],
                "matched": float(F.cosine_similarity(source, target, dim=-1).mean()),
                "shuffled": float(F.cosine_similarity(source, target.roll(1, dims=0), dim=-1).mean()),
            }
        )


def collapse_figure() -> Any:
    """Effective rank and cosines over the steps of four arms from the same weights, on the same examples."""
    train, held_out = generate_split(STEPS * BATCH, HELD_OUT, seed=0, task=EASY)
    figure, axes = new_figure(1, 3, height=3.9)
    for i, (name, options) in enumerate(ARMS.items()):
        watch = HeldOut(held_out)
        trainer = watch.trainer = trainer_of(
            train, [watch], max_steps=STEPS, per_device_train_batch_size=BATCH, lbd=1.0, logging_steps=STEPS, **options
        )
        trainer.train()
        print(f"{name}: {watch.found[-1]}", flush=True)
        steps = [point["step"] for point in watch.found]
        style = {"label": name, "linewidth": 1.7, "markersize": 4, "markevery": (i, 4), **look(i)}
        axes[0].plot(steps, [point["rank"] for point in watch.found], **style)
        axes[1].plot(steps, [point["matched"] for point in watch.found], **style)
        axes[2].plot(steps, [point["matched"] - point["shuffled"] for point in watch.found], **style)
    titles = ("effective rank of the targets", "cosine of matched pairs", "cosine, matched - shuffled")
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("optimizer step", fontsize=9)
    axes[0].set_yscale("log")
    axes[0].set_yticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
    axes[0].minorticks_off()
    legend_below(figure, axes[0])
    return figure


def loss_scale_figure() -> Any:
    """Gradient norm of the first step over the accumulation, the same 8 examples in all."""
    rows, _ = generate_split(8, 1, seed=0, task=EASY)
    figure, (axis,) = new_figure(height=3.6)
    for i, scale in enumerate(("mean", "reference")):
        norms = []
        for count in ACCUMULATIONS:
            trainer = trainer_of(
                rows, max_steps=1, per_device_train_batch_size=8 // count, gradient_accumulation_steps=count,
                loss_scale=scale, logging_steps=1, max_grad_norm=1e9,
            )  # fmt: skip
            trainer.train()
            norms.append(next(entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry))
        print(f"{scale}: {norms}", flush=True)
        axis.plot(ACCUMULATIONS, norms, label=f"loss_scale {scale}", linewidth=1.8, markersize=6, **look(i))
    axis.set_xlabel("gradient_accumulation_steps (8 examples in all)")
    axis.set_ylabel("gradient norm, first step")
    axis.set_xticks(ACCUMULATIONS)
    axis.set_ylim(bottom=0)
    legend_below(figure, axis)
    return figure
