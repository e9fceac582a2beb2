"""The numbers of a run: the loss of an optimizer step, the metrics of log entries and evaluations, and their display.

Shapes: P pairs, D width; B examples of a batch, N labelled tokens in it, L largest number of labelled tokens in an example.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm
from transformers import ProgressCallback, TrainerCallback

from stepjepa.data.types import LM, NOT_LABELLED, Batch, ForestOutput, LossParts
from stepjepa.modeling.card import effective_rank
from stepjepa.modeling.load import broken_weights
from stepjepa.modeling.parts import local
from stepjepa.objectives.base import Objective
from stepjepa.training.options import JEPAOptions
from stepjepa.utils.terminal import say

# Number of target states kept between two logs to detect collapse; with 256, states of 96 to 256 dimensions can reach their
# full rank.
KEPT_TARGETS = 256
# Metrics that are means rather than counts, besides the parts of the loss.
MEANS = ("cosine_similarity", "target_std", "effective_rank")
# Means over labelled tokens, logged with `token_metrics`; the names are TRL's.
TOKEN_MEANS = ("mean_token_accuracy", "entropy")
# What a log line shows: key of the log entry, label, format.
_SHOWN = (
    ("lm_loss", "lm", ".4f"),
    ("jepa_loss", "jepa", ".4f"),
    ("cosine_similarity", "cos", ".3f"),
    ("mean_token_accuracy", "acc", ".3f"),
    ("entropy", "entropy", ".3f"),
    ("eval_lm_loss", "eval lm", ".4f"),
    ("eval_jepa_loss", "eval jepa", ".4f"),
    ("tokens_per_second", "tok/s", ".0f"),
)
# The same with the labels of the published script.
_PUBLISHED = (("lm_loss", "LM loss"), ("jepa_loss", "JEPA loss"), ("loss", "Total"))


def evaluation_names(
    parts: Sequence[str], scored: Sequence[str], token_means: Sequence[str] = ()
) -> list[str]:
    """Names of the metrics that an evaluation logs, without ``eval_``.

    Args:
        parts: the parts of the loss besides the LM loss; empty if no pairs are compared.
        scored: metrics of generated answers.
        token_means: the metrics of `TOKEN_MEANS` that are computed.
    """
    pairs = (*parts, "num_pairs", *MEANS) if parts else ()
    answers = (*scored, "did_not_stop") if scored else ()
    return [
        "loss",
        LM,
        *token_means,
        *pairs,
        *answers,
        "runtime",
        "samples_per_second",
        "steps_per_second",
    ]


def precise_dtype(device: torch.device) -> torch.dtype:
    """float64 if the device has it, else float32."""
    return torch.float32 if device.type == "mps" else torch.float64


def on_device(number: Tensor | float, device: torch.device) -> Tensor:
    """A number or scalar tensor () as a scalar tensor () in the most precise dtype of a device."""
    dtype = precise_dtype(device)
    if isinstance(number, Tensor):
        return number.to(device, dtype)
    # Filling a tensor on the device does not wait for the device, unlike a copy from the host.
    return torch.full((), number, dtype=dtype, device=device)


def over_processes(values: object, accelerator: Accelerator) -> list[Any]:
    """The sums of numbers (in a tensor or a nested list) over all processes. Every process must call this function."""
    device = accelerator.device
    totals = torch.as_tensor(values, dtype=precise_dtype(device), device=device)
    return accelerator.reduce(totals, reduction="sum").tolist()


def window_counts(
    objective: Objective, batches: Sequence[Batch], device: torch.device
) -> dict[str, Tensor]:
    """The divisor of each part of the loss, by its name: the number of labels or pairs in some micro-batches of this
    process, each () of `precise_dtype`."""
    counts = [{LM: batch.label_ids.numel(), **objective.counts(batch)} for batch in batches]
    names = (LM, *objective.part_names)
    return {name: on_device(sum(count[name] for count in counts), device) for name in names}


def total_loss(parts: LossParts, counts: Mapping[str, Tensor], lbd: float) -> Tensor:
    """``sum of weight * part / count``, () float32, with all parts except the LM loss multiplied by lambda.

    Args:
        parts: the parts of the loss of one micro-batch.
        counts: the divisor of each part, () each, over all micro-batches and processes of the optimizer step; zero counts as
            one.
        lbd: lambda at this step; see `lbd_at`.
    """
    terms = []
    for name, part in parts.items():
        # Divided by the count of the entire step, not of the micro-batch, so the gradient does not depend on how the step is
        # divided.
        count = counts[name]
        # A count of 0 becomes a divisor of 1. A comparison in Python would wait for the device.
        divisor = count + (count == 0)
        scale = part.weight if name == LM else lbd * part.weight
        terms.append(scale * part.sum / divisor)
    return sum(terms[1:], start=terms[0])


def lbd_at(options: JEPAOptions, step: int, steps: int) -> float:
    """lambda at optimizer step `step` (from 0) of `steps`: a warm-up, then the schedule, and 0 after `jepa_until`."""
    if options.jepa_until < 1 and step >= options.jepa_until * steps:
        return 0.0
    warm = options.lbd_warmup_ratio * steps
    if step < warm:
        return options.lbd * step / warm
    if options.lbd_schedule == "constant":
        return options.lbd
    done = (step - warm) / max(steps - warm, 1)
    return options.lbd * (1 + math.cos(math.pi * min(done, 1.0))) / 2


def weights_are_finite(model: torch.nn.Module, accelerator: Accelerator) -> bool:
    """Whether all trained weights are finite on all processes. Every process must call this function."""
    # With FSDP, a process sees only its own shards.
    shards = {
        name: local(weight.detach())
        for name, weight in model.named_parameters()
        if weight.requires_grad
    }
    return over_processes([float(bool(broken_weights(shards)))], accelerator) == [0.0]


@dataclass
class LossMeter:
    """Sums over micro-batches, which stay on the device until they are logged.

    Attributes:
        names: the names of the parts of the loss.
        sums: (2 * parts + 3,) of `precise_dtype`: sum and count of every part, then pairs, cosine similarities and tokens;
            two more for `TOKEN_MEANS` if they are logged.
        targets: (P, D) target states of some micro-batches.
        since: time from which the speed is measured.
        tokens: number of tokens of all processes; set by `metrics`.
        weights: constant factors of the parts.
    """

    names: tuple[str, ...] = (LM,)
    sums: Tensor | None = None
    targets: list[Tensor] = field(default_factory=list)
    since: float = field(default_factory=time.perf_counter)
    tokens: float = 0.0
    weights: dict[str, float] = field(default_factory=dict)

    def add(self, output: ForestOutput, batch: Batch) -> None:
        """Count one micro-batch."""
        source_PD = output.source_states.detach().float()
        target_PD = output.target_states.detach().float()
        cosine_P = F.cosine_similarity(source_PD, target_PD, dim=-1)
        # No number is read here, because that would make every step wait for the device.
        numbers: list[Any] = []
        for name in self.names:
            part = output.parts[name]
            self.weights[name] = part.weight
            numbers += [part.sum.detach(), part.count]
        # All rows of the batch, including those of separate targets, without padding.
        tokens = sum(rows.filled.sum() for rows in batch.every_rows)
        numbers += [len(source_PD), cosine_P.sum(), tokens]
        if output.token_sums is not None:
            numbers += output.token_sums
        sums = torch.stack([on_device(number, source_PD.device) for number in numbers])
        self.sums = sums if self.sums is None else self.sums + sums
        kept_targets = sum(map(len, self.targets))
        if len(target_PD) and kept_targets < KEPT_TARGETS:
            self.targets.append(target_PD)

    def metrics(self, makes_pairs: bool, accelerator: Accelerator) -> dict[str, float]:
        """Means over the labels and pairs of all processes, by their names in the log. Every process must call this method.

        Args:
            makes_pairs: whether the objective compares pairs.
        """
        # A process without a micro-batch takes part in the sum too; otherwise the others would wait forever.
        sums = torch.zeros(0) if self.sums is None else self.sums
        missing = 2 * len(self.names) + 5 - len(sums)
        totals = over_processes(F.pad(sums, (0, missing)), accelerator)
        *parts, pairs, cosine, self.tokens, right, entropy = totals
        metrics = {}
        for name, total, count in zip(self.names, parts[::2], parts[1::2], strict=True):
            if name == LM or count:
                metrics[name] = total / (count or 1.0)
        # Zero means that `token_metrics` is off.
        if entropy:
            labels = parts[2 * self.names.index(LM) + 1]
            metrics |= dict(zip(TOKEN_MEANS, (right / labels, entropy / labels), strict=True))
        if makes_pairs:
            metrics |= {"cosine_similarity": cosine / pairs} if pairs else {}
            metrics["num_pairs"] = int(pairs)
            metrics |= collapse_signs(self.targets)
        return metrics

    def speed(self) -> dict[str, float]:
        """Tokens per second of all processes since `since`; call `metrics` first."""
        return {"tokens_per_second": round(self.tokens / (time.perf_counter() - self.since), 1)}


def collapse_signs(targets: list[Tensor]) -> dict[str, float]:
    """Numbers that show whether the targets collapse to one vector.

    ``target_std``: standard deviation of the unit-length targets over the batch, times the square root of the width (1 if
    they are spread evenly in all directions, 0 for a single point). ``effective_rank``: exponential of the entropy of their
    normalised singular values (RankMe, arXiv:2210.02885, Eq. 1; uncentred), 1 at collapse.

    Args:
        targets: (P, D) tensors.
    """
    pairs = sum(map(len, targets))
    if pairs < 2:
        return {}
    every_target = torch.cat(targets)
    # On the CPU, because not every device supports float64 and singular values.
    kept_targets = every_target[:KEPT_TARGETS].cpu().double()
    states = F.normalize(kept_targets, dim=-1)
    # The decomposition raises an error on NaN.
    if not states.isfinite().all():
        return {"target_std": float("nan"), "effective_rank": float("nan")}
    singular_values = torch.linalg.svdvals(states).numpy()
    rank = effective_rank(singular_values)
    mean_square = states.std(dim=0).square().mean()
    spread = mean_square.sqrt() * states.shape[1] ** 0.5
    return {"target_std": float(spread), "effective_rank": rank}


def by_example(values_N: Tensor, batch: Batch, size: int) -> Tensor:
    """Values at the labelled positions of a batch, (B, L, ...), padded with `NOT_LABELLED`.

    Args:
        values_N: (N, ...) values, in the order of `batch.label_positions`.
        batch: the batch.
        size: B, the number of its examples.
    """
    # The example of each label: a padded row has one example, a packed row may have several.
    rows = batch.rows
    if rows.example is None:
        example_N = batch.label_positions // rows.input_ids.shape[1]
    else:
        example_N = rows.example.flatten()[batch.label_positions]
    counts = torch.bincount(example_N, minlength=size).tolist()
    return pad_sequence(values_N.split(counts), batch_first=True, padding_value=NOT_LABELLED)


# Display during a run


def log_line(logs: dict[str, Any], metrics: Sequence[str] = ()) -> str:
    """A log entry in one line: ``lm 2.4312  jepa 0.0687  cos 0.931  tok/s 3112``; `metrics` names the scores of answers."""
    shown = [*_SHOWN, *((f"eval_{name}", name, ".3f") for name in metrics)]
    numbers = [
        f"{name} {logs[key]:{form}}"
        for key, name, form in shown
        if isinstance(logs.get(key), (int, float))
    ]
    return "  ".join(numbers)


class Bars(ProgressCallback):
    """The Trainer's progress bars, without its lines."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Print nothing, because `RunDisplay` prints the log."""

    def on_train_end(self, args, state, control, **kwargs):
        """Close the bars; also called when training ends with an error."""
        for bar in (self.prediction_bar, self.training_bar):
            if bar is not None:
                bar.close()
        self.prediction_bar = self.training_bar = None


class RunDisplay(TrainerCallback):
    """Prints one plain line per log entry. With `published`, the line of a training step is ``LM loss: 2.3451, JEPA loss:
    0.1234, Total: 2.3574``.

    Args:
        metrics: names of the scores of answers.
    """

    def __init__(self, metrics: Sequence[str] = ()):
        self.metrics = metrics
        self.published = False

    def on_log(self, args, state, control, logs=None, **kwargs):
        """See `TrainerCallback`."""
        logs = logs or {}
        losses = log_line(logs, self.metrics)
        if self.published and "loss" in logs:
            losses = ", ".join(
                f"{name}: {logs[key]:.4f}" for key, name in _PUBLISHED if key in logs
            )
        if not state.is_world_process_zero or not losses:
            return
        # The line is printed above the bars instead of into them.
        with tqdm.external_write_mode():
            say(f"step {state.global_step}/{state.max_steps}  {losses}")
