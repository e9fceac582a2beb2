"""What a run says of itself before it starts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from stepjepa.training.config import JEPAConfig
from stepjepa.training.options import RunOptions
from stepjepa.training.trainer import JEPATrainer


def is_main_process() -> bool:
    """Whether this process prints and writes (the first of a distributed run, or the only one)."""
    return int(os.environ.get("RANK", "0")) == 0


def say(line: str) -> None:
    """Print a line, once over all processes."""
    if is_main_process():
        print(line, flush=True)


def announce(trainer: JEPATrainer, run: RunOptions, checkpoint: Path | None) -> None:
    """Say what will be trained, on what, and where it will be written."""
    args = trainer.args
    for name, report in trainer.data_reports.items():
        lines = report.lines()
        if args.streaming and name.startswith("train"):
            lines = [f"{report.source}: streamed, {args.shuffle_buffer:,} examples shuffled together"]
        for line in lines:
            say(f"{name if not line.startswith(' ') else ' ' * len(name)}  {line}")
    for line in mixing_in_words(trainer):
        say(f"mix    {line}")
    model: Any = trainer.model
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    every = sum(p.numel() for p in model.parameters())
    loss = "LM loss alone"
    if args.uses_pairs:
        loss = loss_in_words(args)
    elif args.objective != "regular":
        loss += " (lbd is 0: trains exactly like regular)"
    say(f"model  {run.model_name}: {every:,} parameters, {trained:,} trained{' (LoRA)' if run.lora else ''}")
    say(f"loss   {args.objective}: {loss}; forward {trainer.setup.forward}; learning rate {args.learning_rate:g}")
    if args.same_flop and args.uses_pairs:
        regular, steps, ratio = trainer.equal_compute
        say(f"flop   a step costs {ratio:.2f} times a regular one: {steps} steps for {regular} regular ones")
    say(f"output {args.output_dir}{f' (going on from {checkpoint.name})' if checkpoint else ''}")


def mixing_in_words(trainer: JEPATrainer) -> list[str]:
    """What an epoch holds of each of several data sets: ``a.jsonl: 75 %, 2.4 times its 1,000 examples an epoch``."""
    args = trainer.args
    names = [report.source for name, report in trainer.data_reports.items() if name.startswith("train")]
    if not args.mixing_weights:
        return []
    shares = [f"{weight / sum(args.mixing_weights):.1%}" for weight in args.mixing_weights]
    if args.streaming:
        return [f"{name}: {share} of the rows" for name, share in zip(names, shares, strict=True)]
    mixture = trainer.train_dataset.mixture  # type: ignore[union-attr]
    return [
        f"{name}: {share}, {count / size:.2f} times its {size:,} examples an epoch"
        for name, share, size, count in zip(names, shares, *mixture, strict=True)
    ]


def loss_in_words(args: JEPAConfig) -> str:
    """The loss of a run: ``1 * LM + 0.1 * cosine, K = 2, first pairs``."""
    distance: str = args.jepa_loss
    if args.objective == "semantic_tube":
        distance = f"{'turning angle' if args.tube_mode == 'curvature' else distance} of {args.tube_mode}"
    parts = [f"{args.gamma:g} * LM + {args.lbd:g} * {distance}"]
    if args.objective != "semantic_tube":
        parts.append(f"K = {args.predictors}")
    if args.objective == "step_jepa":
        horizons = "" if args.horizons == (1,) else f", horizon {', '.join(map(str, args.horizons))}"
        parts.append(f"{args.step_pairs} pairs{horizons}")
    if args.objective == "llm_jepa":
        parts.append(f"views {args.views}")
    if args.predictor_head != "none":
        parts.append(f"{args.predictor_head} head")
    if not args.target_grad:
        parts.append("EMA target" if args.target_encoder == "ema" else "no gradient into the target")
    if args.regularizer != "none":
        parts.append(f"{args.regularizer} ({args.regularizer_weight:g})")
    if args.control != "none":
        parts.append(f"CONTROL: {args.control} targets")
    return ", ".join(parts)
