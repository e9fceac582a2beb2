"""What a run says of itself before it starts and when it is done."""

from __future__ import annotations

import math
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from stepjepa.data.suggest import suggested_metric
from stepjepa.training.config import JEPAConfig
from stepjepa.training.run_options import RunOptions
from stepjepa.training.summary import (
    first_batches,
    memory_in_words,
    output_in_words,
    steps_in_words,
    tokens_in_words,
)
from stepjepa.training.trainer import JEPATrainer
from stepjepa.training.view import clock, short
from stepjepa.utils.terminal import print_text

LABELS = 7  # columns of the words in front of the lines


def is_main_process() -> bool:
    """Whether this process prints and writes (the first of a distributed run, or the only one)."""
    return int(os.environ.get("RANK", "0")) == 0


def say(line: str) -> None:
    """Print a line, once over all processes."""
    if is_main_process():
        print_text(line)


def tell(label: str, lines: Sequence[str], width: int = LABELS) -> None:
    """Say lines behind a label; on a terminal, long ones are broken and the label's column stays free."""
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    for number, line in enumerate(lines):
        text = f"{'' if number else label:<{width}}{line}"
        if width + 20 < columns < len(text):
            text = textwrap.fill(text, columns, subsequent_indent=" " * (width + 2), break_on_hyphens=False)
        say(text)


def announce(trainer: JEPATrainer, run: RunOptions, checkpoint: Path | None) -> None:
    """Say what will be trained, on what, at what cost, and what will be written where."""
    if not is_main_process():
        return
    args = trainer.args
    width = max(LABELS, *(len(name) + 1 for name in trainer.data_reports))
    for name, report in trainer.data_reports.items():
        lines = report.lines()
        if args.streaming and name.startswith("train"):
            lines = [f"{report.source}: streamed, {args.shuffle_buffer:,} examples shuffled together"]
            lines += report.steps.lines()
        tell(name, [line.removeprefix("  ") for line in lines], width)
    batches = first_batches(trainer)
    flop = []
    if args.same_flop and args.uses_pairs:
        regular, steps, ratio = trainer.equal_compute
        flop = [f"a step costs {ratio:.2f} times a regular one: {steps} steps for {regular} regular ones"]
    told = {
        "mix": mixing_in_words(trainer),
        "model": [model_in_words(trainer, run)],
        "loss": [method_in_words(trainer)],
        "flop": flop,
        "steps": [steps_in_words(trainer)],
        "tokens": [tokens_in_words(trainer, batches)],
        "memory": [memory_in_words(trainer, batches)],
        "output": output_in_words(trainer, checkpoint),
    }
    for label, lines in told.items():
        tell(label, lines, width)


def conclusion(trainer: JEPATrainer, run: RunOptions, metrics: dict[str, float]) -> None:
    """Say what came out, where it is, and what to type next.

    Args:
        trainer: behind its training.
        run: what was read.
        metrics: the final ones, as in ``metrics.json``.
    """
    output = str(trainer.args.output_dir)
    answers = [f"eval_{name}" for name in (*(run.eval_metrics or ()), "did_not_stop")]
    speeds = [entry["tokens_per_second"] for entry in trainer.state.log_history if "tokens_per_second" in entry]
    speed = f", {median(speeds):,.0f} tokens/s (median of the log)" if speeds else ""
    say("")
    if trainer.args.streaming:  # only now is known what the rows hold
        for name, report in trainer.data_reports.items():
            if name.startswith("train"):
                tell("data", [f"{report.source}: {report.rows_read:,} rows read", *report.steps.lines()])
    tell("done", [f"{trainer.state.global_step:,} steps in {clock(metrics.get('train_runtime', 0.0))}{speed}"])
    scores = "  ".join(f"{name} {metrics[name]:.4f}" for name in answers if name in metrics)
    tell("final", [line for line in (short(metrics), scores) if line])
    files = "metrics.json, run.json, data_report.json, resolved.yaml"
    tell("output", [f"{output}: model and records ({files})"])
    broken = first_broken_step(trainer.state.log_history)
    if broken is not None:
        say(
            f"warning: the loss is no finite number from step {broken} on (of those in the log), so the model is of no "
            "use; try a lower --learning_rate or --lbd, and see docs/troubleshooting.md"
        )
    looked_at = run.eval_file or next(iter(run.train_file or ()), None)
    metric = " ".join(run.eval_metrics or [suggested_metric(looked_at)])
    test = shlex.quote(run.eval_file) if run.eval_file else "TEST_FILE"
    say(f"{'load':<{LABELS}}AutoModelForCausalLM.from_pretrained({output!r})")
    say(f"{'next':<{LABELS}}stepjepa evaluate --model_name {shlex.quote(output)} --test_file {test} --metric {metric}")
    say(f"{'':<{LABELS}}stepjepa report {shlex.quote(output)}")


def first_broken_step(log_history: Sequence[dict[str, Any]]) -> int | None:
    """The step of the first log entry with a loss that is NaN or infinite."""
    for entry in log_history:
        losses = [entry[name] for name in ("lm_loss", "jepa_loss") if name in entry]
        if any(loss is None or not math.isfinite(loss) for loss in losses):  # None where a checkpoint has kept it
            return entry["step"]
    return None


def model_in_words(trainer: JEPATrainer, run: RunOptions) -> str:
    """The model's name and how much of it is trained."""
    model: Any = trainer.model
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    every = sum(p.numel() for p in model.parameters())
    kind = ", LoRA" if run.lora else ""
    return f"{run.model_name}: {every:,} parameters, {trained:,} trained ({100 * trained / every:.3g} %{kind})"


def method_in_words(trainer: JEPATrainer) -> str:
    """Objective, loss, forward and learning rate."""
    args = trainer.args
    loss = "LM loss alone"
    if args.uses_pairs:
        loss = loss_in_words(args)
    elif args.objective != "regular":
        loss += " (lbd is 0: trains exactly like regular)"
    return f"{args.objective}: {loss}; forward {trainer.setup.forward}; learning rate {args.learning_rate:g}"


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
