"""The figures of the summary that a run begins with: steps, tokens, memory, files."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from stepjepa.forest.collate import Batch
from stepjepa.modeling.flops import batch_tokens
from stepjepa.training.compute import planned_steps
from stepjepa.training.memory import BatchShape, estimate_memory, in_words
from stepjepa.training.trainer import JEPATrainer

# Micro-batches that are laid out beforehand, at most, and the seconds after which no more are.
BATCHES, SECONDS = 8, 0.2


def first_batches(trainer: JEPATrainer) -> list[Batch]:
    """The first micro-batches of the first epoch; none of a stream, which is not read before it is trained on."""
    args, dataset = trainer.args, trainer.train_dataset
    batches: list[Batch] = []
    if args.streaming or dataset is None:
        return batches
    draws, begin = iter(trainer._order(dataset)), time.perf_counter()
    while len(batches) < BATCHES and time.perf_counter() - begin < SECONDS:
        examples = [dataset[draw] for draw in islice(draws, args.train_batch_size)]  # type: ignore[index]
        if not examples:
            break
        batches.append(trainer.data_collator(examples))  # type: ignore[arg-type]
    return batches


def steps_in_words(trainer: JEPATrainer) -> str:
    """``1,000 of 32 examples (8 x 2 accumulated x 2 processes), 4.3 epochs``."""
    args, processes = trainer.args, trainer.accelerator.num_processes
    parts = [str(args.per_device_train_batch_size)]
    parts += [f"{args.gradient_accumulation_steps} accumulated"] if args.gradient_accumulation_steps > 1 else []
    parts += [f"{processes} processes"] if processes > 1 else []
    batch = args.per_device_train_batch_size * args.gradient_accumulation_steps * processes
    how = f" ({' x '.join(parts)})" if len(parts) > 1 else ""
    if args.streaming:
        return f"{args.max_steps:,} of {batch:,} examples{how}"
    size = len(trainer.train_dataset)  # type: ignore[arg-type]
    steps = planned_steps(args, size, processes)
    if args.same_flop and args.uses_pairs:
        steps = trainer.equal_compute.steps
    epochs = f"{steps * batch / size:.3g}"
    return f"{steps:,} of {batch:,} examples{how}, {epochs} {'epoch' if epochs == '1' else 'epochs'}"


def tokens_in_words(trainer: JEPATrainer, batches: Sequence[Batch]) -> str:
    """Positions of an optimizer step by kind of segment."""
    if not batches:
        return "a step: not known before the stream is read"
    args = trainer.args
    counts: Counter[str] = Counter()
    for batch in batches:
        counts.update(batch_tokens(batch))
    scale = args.gradient_accumulation_steps * trainer.accelerator.num_processes / len(batches)
    total = counts.total()
    kinds = ", ".join(f"{name} {n * scale:,.0f} ({n / total:.0%})" for name, n in counts.items() if n)
    return f"{total * scale:,.0f} a step: {kinds}; mean of {len(batches)} micro-batches"


def memory_in_words(trainer: JEPATrainer, batches: Sequence[Batch]) -> str:
    """What one process will hold, counted and estimated."""
    memory = estimate_memory(trainer, [BatchShape.of(batch) for batch in batches])
    counted = f"weights {in_words(memory.weights)}, gradients {in_words(memory.gradients)}"
    if memory.optimizer is None:
        counted += f", states of {getattr(trainer.args.optim, 'value', trainer.args.optim)} not counted"
    else:
        counted += f", optimizer {in_words(memory.optimizer)}"
    counted = f"{in_words(memory.counted)} counted ({counted})"
    if memory.activations is None or memory.logits is None:
        return f"{counted}; activations and logits not known beforehand"
    rest = f"activations {in_words(memory.activations)}, logits {in_words(memory.logits)}"
    total = in_words(memory.counted + memory.activations + memory.logits)
    estimated = in_words(memory.activations + memory.logits)
    return f"about {total} a process beside the libraries: {counted}, {estimated} estimated ({rest})"


def output_in_words(trainer: JEPATrainer, checkpoint: Path | None) -> list[str]:
    """Which files the run writes, how often, and where its logs go."""
    args = trainer.args
    went_on = f" (going on from {checkpoint.name})" if checkpoint else ""
    lines = [
        f"{args.output_dir}{went_on}: model and tokenizer, resolved.yaml, run.json, data_report.json, metrics.json",
        checkpoints_in_words(args),
    ]
    if args.report_to:
        lines.append(f"logs to {', '.join(args.report_to)}")
    return lines


def checkpoints_in_words(args: Any) -> str:
    """``checkpoint-N every 500 steps and at the end; the newest 2 are kept``."""
    strategy = getattr(args.save_strategy, "value", args.save_strategy)
    if strategy == "no":
        return "no checkpoints"
    every = f"every {args.save_steps:,.0f} steps" if args.save_steps >= 1 else f"every {args.save_steps:.0%} of the run"
    when = {"steps": f"{every} and at the end", "epoch": "every epoch", "best": "whenever the metric is better"}
    limit = args.save_total_limit
    kept = f"the newest {limit} are kept" if limit and limit > 0 else "all are kept"
    return f"checkpoint-N {when.get(strategy, strategy)}; {kept}"
