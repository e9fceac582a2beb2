"""The numbers of a run: the loss of an optimizer step, what is summed between two log entries and over an evaluation, and
how they are shown.

Shapes: P pairs, D width; B examples of a batch, N labelled tokens of it, L those of the example that has most, E examples of
a data set; 2 stands for the predicted and the true id.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch.nn.utils.rnn import pad_sequence
from transformers import ProgressCallback

from stepjepa.data.types import LM, NOT_LABELLED, Batch, ForestOutput, LossParts
from stepjepa.modeling.card import effective_rank
from stepjepa.modeling.load import broken_weights
from stepjepa.modeling.parts import local
from stepjepa.objectives.base import Objective
from stepjepa.training.options import JEPAOptions
from stepjepa.utils.terminal import is_quiet, say

# Target states kept between two logs for the collapse numbers; 256 give the rank of 96 to 256 dimensions a fair chance.
KEPT_TARGETS = 256
# What does not grow with the number of batches that it was taken over, besides the parts of the loss.
MEANS = ("cosine_similarity", "target_std", "effective_rank")
# Of the labelled tokens, where they are asked for; called as in TRL.
TOKEN_MEANS = ("mean_token_accuracy", "entropy")
# What a line of the log shows, how it is called there, and its format.
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
# The same in the words of the published script.
_PUBLISHED = (("lm_loss", "LM loss"), ("jepa_loss", "JEPA loss"), ("loss", "Total"))


def evaluation_names(parts: Sequence[str], scored: Sequence[str], token_means: Sequence[str] = ()) -> list[str]:
    """What an evaluation is called by in the log, without ``eval_``.

    Args:
        parts: of the loss besides the LM loss; none where no pairs are compared.
        scored: metrics of answers.
        token_means: of the labelled tokens.
    """
    pairs = (*parts, "num_pairs", *MEANS) if parts else ()
    answers = (*scored, "did_not_stop") if scored else ()
    return ["loss", LM, *token_means, *pairs, *answers, "runtime", "samples_per_second", "steps_per_second"]


def precise_dtype(device: torch.device) -> torch.dtype:
    """float64, where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def on_device(number: torch.Tensor | float, device: torch.device) -> torch.Tensor:
    """A number, or a tensor (), in the most precise dtype of a device: ()."""
    dtype = precise_dtype(device)
    if isinstance(number, torch.Tensor):
        return number.to(device, dtype)
    return torch.full((), number, dtype=dtype, device=device)  # a copy from the host would wait for the device


def over_processes(values: Sequence[float] | torch.Tensor, accelerator: Accelerator) -> list[float]:
    """The sums over all processes of some numbers (N,). Every process must call it."""
    device = accelerator.device
    totals = torch.as_tensor(values, dtype=precise_dtype(device), device=device)
    return accelerator.reduce(totals, reduction="sum").tolist()


def window_counts(
    objective: Objective, batches: Sequence[Batch], device: torch.device | str
) -> dict[str, torch.Tensor]:
    """What each part of the loss is divided by, () float64 by its name (float32 where the device has no other): the labels
    and pairs of some micro-batches of this process."""
    counts = [{LM: batch.label_ids.numel(), **objective.counts(batch)} for batch in batches]
    names = (LM, *objective.part_names)
    return {name: on_device(sum(one[name] for one in counts), torch.device(device)) for name in names}


def total_loss(parts: LossParts, counts: Mapping[str, torch.Tensor], lbd: float) -> torch.Tensor:
    """``sum of weight * part / count``, all parts but the LM loss times lambda: () float32.

    Args:
        parts: of one micro-batch.
        counts: () of the optimizer step, by the names of the parts: over all micro-batches and processes; zero divides by
            one.
        lbd: lambda of this step, see `lbd_at`.
    """
    terms = []
    for name, part in parts.items():
        count = counts[name]
        divisor = count + (count == 0)
        scale = part.weight if name == LM else lbd * part.weight
        terms.append(scale * part.sum / divisor)
    return sum(terms[1:], start=terms[0])


def lbd_at(options: JEPAOptions, step: int, steps: int) -> float:
    """lambda at optimizer step `step` (from 0) of a run of `steps`: the warm-up, then the schedule, 0 after `jepa_until`."""
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
    """Whether all weights that are trained are finite, on all processes. Every process must call it."""
    # Of what is sharded, this process's part.
    own = {name: local(weight.detach()) for name, weight in model.named_parameters() if weight.requires_grad}
    return over_processes([float(bool(broken_weights(own)))], accelerator) == [0.0]


@dataclass
class LossMeter:
    """Sums over micro-batches, kept on the device until they are asked for.

    Attributes:
        names: of the parts of the loss.
        sums: (2 * parts + 3,) float64: sum and count of every part, pairs, cosine similarities, tokens; two more for
            `TOKEN_MEANS` if they are logged.
        targets: (P, D) target states of some micro-batches.
        since: the start of the time that the speed is taken over.
        tokens: of all processes, once `metrics` was called.
        weights: constant factors of the parts.
    """

    names: tuple[str, ...] = (LM,)
    sums: torch.Tensor | None = None
    targets: list[torch.Tensor] = field(default_factory=list)
    since: float = field(default_factory=time.perf_counter)
    tokens: float = 0.0
    weights: dict[str, float] = field(default_factory=dict)

    def add(self, output: ForestOutput, batch: Batch) -> None:
        """Count one micro-batch."""
        source_PD = output.source_states.detach().float()
        target_PD = output.target_states.detach().float()
        cosine_P = F.cosine_similarity(source_PD, target_PD, dim=-1)
        # The numbers stay on the device, and are read when they are logged.
        numbers: list[Any] = []
        for name in self.names:
            part = output.parts[name]
            self.weights[name] = part.weight
            numbers += [part.sum.detach(), part.count]
        tokens = sum(rows.filled.sum() for rows in batch.every_rows)  # without padding
        numbers += [len(source_PD), cosine_P.sum(), tokens]
        if output.token_sums is not None:
            numbers += output.token_sums
        sums = torch.stack([on_device(number, source_PD.device) for number in numbers])
        self.sums = sums if self.sums is None else self.sums + sums
        kept = sum(map(len, self.targets))
        if len(target_PD) and kept < KEPT_TARGETS:
            self.targets.append(target_PD)

    def metrics(self, makes_pairs: bool, accelerator: Accelerator) -> dict[str, float]:
        """Means over the labels and pairs of all processes, by the names of the log. Every process must call it.

        Args:
            makes_pairs: whether pairs are compared at all.
        """
        sums = [] if self.sums is None else self.sums.tolist()
        missing = 2 * len(self.names) + 5 - len(sums)
        totals = over_processes([*sums, *[0.0] * missing], accelerator)
        *parts, pairs, cosine, self.tokens, right, entropy = totals
        metrics = {}
        for name, total, count in zip(self.names, parts[::2], parts[1::2], strict=True):
            if name == LM or count:
                metrics[name] = total / (count or 1.0)
        if entropy:  # zero where nothing was counted
            labels = parts[2 * self.names.index(LM) + 1]
            metrics |= dict(zip(TOKEN_MEANS, (right / labels, entropy / labels), strict=True))
        if makes_pairs:
            metrics |= {"cosine_similarity": cosine / pairs} if pairs else {}
            metrics["num_pairs"] = int(pairs)
            metrics |= collapse_signs(self.targets)
        return metrics

    def speed(self) -> dict[str, float]:
        """Tokens a second of all processes since `since`; `metrics` has counted them."""
        return {"tokens_per_second": round(self.tokens / (time.perf_counter() - self.since), 1)}


def collapse_signs(targets: list[torch.Tensor]) -> dict[str, float]:
    """Numbers that show whether all targets become one vector.

    ``target_std``: standard deviation of the unit-length targets over the batch, times the root of the width (1 for
    targets spread evenly in all directions, 0 for a single point). ``effective_rank``: exponential of the entropy of
    their normalised singular values (RankMe, arXiv:2210.02885, Eq. 1; uncentred), 1 at collapse.

    Args:
        targets: (P, D) tensors.
    """
    pairs = sum(map(len, targets))
    if pairs < 2:
        return {}
    every_target = torch.cat(targets)
    kept = every_target[:KEPT_TARGETS].cpu().double()
    states = F.normalize(kept, dim=-1)
    if not states.isfinite().all():
        return {"target_std": float("nan"), "effective_rank": float("nan")}
    singular_values = torch.linalg.svdvals(states).numpy()
    rank = effective_rank(singular_values)
    mean_square = states.std(dim=0).square().mean()
    spread = mean_square.sqrt() * states.shape[1] ** 0.5
    return {"target_std": float(spread), "effective_rank": rank}


class Predictions:
    """The most likely and the true ids of labelled tokens, batch by batch in the order of the data set: what
    ``compute_metrics`` and ``predict`` of the Trainer's interface give."""

    def __init__(self) -> None:
        self._rows: list[torch.Tensor] = []  # (L, 2) of each example

    def add(self, batch: Batch, predicted_N: torch.Tensor, size: int, accelerator: Accelerator) -> None:
        """Add a batch of every process. Every process must call it.

        Args:
            batch: a collator's, of this process.
            predicted_N: (N,) int64, the most likely next token at each labelled position.
            size: B, the same on every process.
        """
        rows = batch.rows
        if rows.example is None:
            example_N = batch.label_positions // rows.input_ids.shape[1]
        else:  # packed rows hold several
            example_N = rows.example.flatten()[batch.label_positions]
        counts = torch.bincount(example_N, minlength=size).tolist()
        both_N2 = torch.stack([predicted_N, batch.label_ids], dim=1)
        both_BL2 = pad_sequence(both_N2.split(counts), batch_first=True, padding_value=NOT_LABELLED)
        both_BL2 = accelerator.pad_across_processes(both_BL2, dim=1, pad_index=NOT_LABELLED)
        self._rows += accelerator.gather(both_BL2).cpu()

    def rectangles(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Predicted and true ids, (E, L) int64 each, of the first `size` examples; short rows end in `NOT_LABELLED`."""
        both_EL2 = pad_sequence(self._rows[:size], batch_first=True, padding_value=NOT_LABELLED).numpy()
        longest = int((both_EL2[..., 1] != NOT_LABELLED).sum(1).max())
        predicted_EL, labels_EL = both_EL2[:, :longest, :].transpose(2, 0, 1)
        return predicted_EL, labels_EL


# What is shown meanwhile


def short(logs: dict[str, Any], metrics: Sequence[str] = ()) -> str:
    """A log entry in one line: ``lm 2.4312  jepa 0.0687  cos 0.931  tok/s 3112``; `metrics` are those of answers."""
    shown = [*_SHOWN, *((f"eval_{name}", name, ".3f") for name in metrics)]
    numbers = [f"{name} {logs[key]:{form}}" for key, name, form in shown if isinstance(logs.get(key), (int, float))]
    return "  ".join(numbers)


def clock(seconds: float) -> str:
    """``0:01:05``."""
    return str(timedelta(seconds=round(seconds)))


class RunDisplay(ProgressCallback):
    """One plain line a log entry; on a terminal also the Trainer's bars. With `published` the line of a training step is
    ``LM loss: 2.3451, JEPA loss: 0.1234, Total: 2.3574``.

    Args:
        disable_tqdm: lines alone on a terminal, too.
        metrics: names of the scores of answers.
    """

    def __init__(self, disable_tqdm: bool = False, metrics: Sequence[str] = ()):
        super().__init__()
        self.has_bar = sys.stderr.isatty() and not disable_tqdm and not is_quiet()
        self.metrics = metrics
        self.published = False

    def on_train_begin(self, args, state, control, **kwargs):
        """See `TrainerCallback`."""
        if self.has_bar:
            super().on_train_begin(args, state, control, **kwargs)

    def on_step_end(self, args, state, control, **kwargs):
        """See `TrainerCallback`."""
        if self.training_bar is not None:
            super().on_step_end(args, state, control, **kwargs)

    def on_prediction_step(self, args, state, control, eval_dataloader=None, **kwargs):
        """See `TrainerCallback`."""
        if self.has_bar:
            super().on_prediction_step(args, state, control, eval_dataloader, **kwargs)

    def on_log(self, args, state, control, logs=None, **kwargs):
        """See `TrainerCallback`."""
        logs = logs or {}
        losses = short(logs, self.metrics)
        if self.published and "loss" in logs:
            losses = ", ".join(f"{name}: {logs[key]:.4f}" for key, name in _PUBLISHED if key in logs)
        if not state.is_world_process_zero or not losses:
            return
        show = say if self.training_bar is None else self.training_bar.write
        show(f"step {state.global_step}/{state.max_steps}  {losses}")

    def on_train_end(self, args, state, control, **kwargs):
        """Leave the bars as they stand; also called when training ends by an error."""
        for bar in (self.prediction_bar, self.training_bar):
            if bar is not None:
                bar.close()
        self.prediction_bar = self.training_bar = None
