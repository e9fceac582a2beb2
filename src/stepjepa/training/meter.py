"""The numbers of a run: from the parts of the loss to that of an optimizer step, what is summed between two log entries, and
what is shown meanwhile: one bar on a terminal, plain lines where there is none.

Shapes: P pairs, D width; B examples of a batch, N labelled tokens of it, L those of the example that has most, E examples of
a data set; 2 stands for the predicted and the true id.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column
from torch.nn.utils.rnn import pad_sequence
from transformers import TrainerCallback

from stepjepa.data.types import LM, Batch, ForestOutput, LossParts
from stepjepa.modeling.collapse import effective_rank
from stepjepa.modeling.flops import KINDS
from stepjepa.modeling.load import broken_weights
from stepjepa.modeling.sharding import local, whole
from stepjepa.training.options import GRADIENT_COSINE, JEPAOptions
from stepjepa.utils.terminal import is_quiet, say

# Target states kept between two logs for the collapse numbers; 256 give the rank of 96 to 256 dimensions a fair chance.
KEPT_TARGETS = 256
# What does not grow with the number of batches that it was taken over, besides the parts of the loss.
MEANS = ("cosine_similarity", "target_std", "effective_rank")
IGNORED = -100  # fills the rows of predicted and of true ids
_WATCHED = ("loss", "gradient norm")
# What a line of the log shows, how it is called there, its format, and what the summary's legend says.
_SHOWN = (
    ("lm_loss", "lm", ".4f", "LM loss, nats a labelled token"),
    ("jepa_loss", "jepa", ".4f", "JEPA loss, mean of the pairs"),
    ("cosine_similarity", "cos", ".3f", "their mean cosine"),
    ("eval_lm_loss", "eval lm", ".4f", "of the evaluation data"),
    ("eval_jepa_loss", "eval jepa", ".4f", "the same"),
    (GRADIENT_COSINE, "grad cos", ".3f", "cosine of the gradients of both losses"),
    ("tokens_per_second", "tok/s", ".0f", "tokens a second without padding"),
)
_PAUSE = 0.1  # seconds between two drawings of the bar
_TRAINING, _EVALUATION = "", "eval "  # the bars, by what stands in front of their numbers


def evaluation_names(parts: Sequence[str], scored: Sequence[str]) -> list[str]:
    """What an evaluation is called by in the log, without ``eval_``.

    Args:
        parts: of the loss besides the LM loss; none where no pairs are compared.
        scored: metrics of answers.
    """
    pairs = (*parts, "num_pairs", *MEANS) if parts else ()
    answers = (*scored, "did_not_stop") if scored else ()
    return ["loss", LM, *pairs, *answers, "runtime", "samples_per_second", "steps_per_second"]


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
        scale = part.weight if name == LM else lbd * part.weight
        terms.append(scale * part.sum / torch.where(count > 0, count, torch.ones_like(count)))
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


def precise_dtype(device: torch.device) -> torch.dtype:
    """float64, where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def over_processes(values: Sequence[float] | torch.Tensor, accelerator: Accelerator) -> list[float]:
    """The sums over all processes of some numbers (N,). Every process must call it."""
    device = accelerator.device
    totals = torch.as_tensor(values, dtype=precise_dtype(device), device=device)
    return accelerator.reduce(totals, reduction="sum").tolist()


@dataclass
class LossMeter:
    """Sums over micro-batches, kept on the device until they are asked for.

    Attributes:
        names: of the parts of the loss.
        sums: (2 * parts + 3,) float64: sum and count of every part, pairs, cosine similarities, tokens.
        targets: (P, D) target states of some micro-batches.
        flops: by kind, of this process.
        since: the start of the time that the speed is taken over.
        tokens: of all processes, once `metrics` was called.
        weights: constant factors of the parts.
    """

    names: tuple[str, ...] = (LM,)
    sums: torch.Tensor | None = None
    targets: list[torch.Tensor] = field(default_factory=list)
    flops: Counter[str] = field(default_factory=Counter)
    since: float = field(default_factory=time.perf_counter)
    tokens: float = 0.0
    weights: dict[str, float] = field(default_factory=dict)

    def add(self, output: ForestOutput, batch: Batch) -> None:
        """Count one micro-batch."""
        source, target = output.source_states.detach(), output.target_states.detach()
        pairs, device = source.shape[0], source.device
        row: list[Any] = []
        for name in self.names:
            part = output.parts[name]
            self.weights[name] = part.weight
            row += [part.sum.detach(), part.count]
        row += [pairs, F.cosine_similarity(source.float(), target.float(), dim=-1).sum()]
        row.append(sum(rows.filled.sum() for rows in batch.every_rows))  # tokens without padding
        new = torch.stack([torch.as_tensor(value, device=device).to(precise_dtype(device)) for value in row])
        self.sums = new if self.sums is None else self.sums + new
        if pairs and sum(len(kept) for kept in self.targets) < KEPT_TARGETS:
            self.targets.append(target.float())

    def metrics(self, makes_pairs: bool, accelerator: Accelerator) -> dict[str, float]:
        """Means over the labels and pairs of all processes, by the names of the log. Every process must call it.

        Args:
            makes_pairs: whether pairs are compared at all.
        """
        empty = [0.0] * (2 * len(self.names) + 3)
        *parts, pairs, cosine, self.tokens = over_processes(empty if self.sums is None else self.sums, accelerator)
        metrics = {}
        for name, total, count in zip(self.names, parts[::2], parts[1::2], strict=True):
            if name == LM or count:
                metrics[name] = total / (count or 1.0)
        if makes_pairs:
            metrics |= {"cosine_similarity": cosine / pairs} if pairs else {}
            metrics["num_pairs"] = int(pairs)
            metrics |= collapse_signs(self.targets)
        return metrics

    def speed(self) -> dict[str, float]:
        """Tokens a second of all processes since `since`; `metrics` has counted them."""
        return {"tokens_per_second": round(self.tokens / (time.perf_counter() - self.since), 1)}

    def flops_by_kind(self, accelerator: Accelerator) -> dict[str, float]:
        """FLOPs of all processes, by kind. Every process must call it."""
        totals = over_processes([self.flops[kind] for kind in KINDS], accelerator)
        return {f"flops_{kind}": value for kind, value in zip(KINDS, totals, strict=True)}

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it, on the host."""
        sums = None if self.sums is None else self.sums.cpu()
        return {"sums": sums, "targets": [target.cpu() for target in self.targets], "flops": dict(self.flops)}

    @classmethod
    def of_states(cls, names: tuple[str, ...], states: Sequence[Mapping[str, Any]], part: slice) -> LossMeter:
        """The meter of the parts `names` that has counted what some of those had that `states` were taken from.

        Args:
            part: which of them; where it is none, nothing was counted.
        """
        first, own = states[0]["sums"], states[part]
        sums = None if first is None else sum((state["sums"] for state in own), torch.zeros_like(first))
        targets = [target for state in own for target in state["targets"]]
        return cls(names, sums, targets, sum((Counter(state["flops"]) for state in own), Counter()))


def collapse_signs(targets: list[torch.Tensor]) -> dict[str, float]:
    """Numbers that show whether all targets become one vector.

    ``target_std``: standard deviation of the unit-length targets over the batch, times the root of the width (1 for
    targets spread evenly in all directions, 0 for a single point). ``effective_rank``: exponential of the entropy of
    their normalised singular values (RankMe, arXiv:2210.02885, Eq. 1; uncentred), 1 at collapse.

    Args:
        targets: (P, D) tensors.
    """
    if sum(len(kept) for kept in targets) < 2:
        return {}
    states = F.normalize(torch.cat(targets)[:KEPT_TARGETS].cpu().double(), dim=-1)
    if not states.isfinite().all():
        return {"target_std": float("nan"), "effective_rank": float("nan")}
    spread = states.std(dim=0).square().mean().sqrt() * states.shape[1] ** 0.5
    rank = effective_rank(torch.linalg.svdvals(states).numpy())
    return {"target_std": float(spread), "effective_rank": rank}


class FiniteWatch:
    """Keeps on the device at which step the loss and the gradient norm first were NaN or infinite.

    What is known is copied to the host when a step begins and read when it ends, so a broken step is found one step late at
    most and no step waits for the device; `first_broken` reads it at once, for where the device is waited for anyway.

    Attributes:
        found: what `first_broken` has found.
    """

    def __init__(self, device: torch.device):
        self.found: tuple[int, str] | None = None
        self._first = torch.zeros(len(_WATCHED), device=device)  # the step of each, 0 for none
        self._copied = torch.zeros(())
        self._event: Any = None

    @property
    def flag(self) -> torch.Tensor:
        """1 once something was not finite, else 0: (1,), to be summed over the processes with what is summed anyway."""
        return (self._first > 0).any().float().reshape(1)

    def end_step(self, step: int, loss: torch.Tensor, grad_norm: torch.Tensor | float | None) -> None:
        """Take in the gradient norm of step `step` (1 is the first), and the sum of the losses since the last log, ()."""
        norm: Any = 0.0 if grad_norm is None else grad_norm
        norm = torch.as_tensor(whole(norm), device=self._first.device)
        broken = ~torch.stack([loss.detach().float(), norm.detach().float().reshape(())]).isfinite()
        self._first = torch.where(broken & (self._first == 0), torch.full_like(self._first, step), self._first)

    def copy_to_host(self, flags: torch.Tensor) -> None:
        """Begin to copy the sum of all processes' flags, (); `broken_before` reads it."""
        self._copied = flags.detach().to("cpu", non_blocking=True)
        if flags.is_cuda:
            self._event = torch.cuda.Event()
            self._event.record()

    def broken_before(self) -> bool:
        """Whether anything was not finite, on any process, when `copy_to_host` was called."""
        if self._event is not None:
            self._event.synchronize()
        return bool(self._copied > 0)

    def first_broken(self, accelerator: Accelerator) -> tuple[int, str] | None:
        """The first broken step of all processes and what was not finite there, where that is news; else None.

        Waits for the device, and every process must call it.
        """
        steps = accelerator.gather(self._first[None]).reshape(-1, len(_WATCHED)).tolist()
        broken = [(step, number) for row in steps for number, step in enumerate(row) if step]
        if not broken:
            return None
        step, number = min(broken)
        before, self.found = self.found, (int(step), _WATCHED[number])
        return None if self.found == before else self.found


def weights_are_finite(model: torch.nn.Module, accelerator: Accelerator) -> bool:
    """Whether all weights that are trained are finite, on all processes. Every process must call it."""
    # Of what is sharded, this process's part.
    own = {name: local(weight.detach()) for name, weight in model.named_parameters() if weight.requires_grad}
    return over_processes([float(bool(broken_weights(own)))], accelerator) == [0.0]


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
        examples_N = batch.label_positions // batch.rows.input_ids.shape[1]
        if batch.rows.example is not None:  # packed rows hold several
            examples_N = batch.rows.example.flatten()[batch.label_positions]
        counts = torch.bincount(examples_N, minlength=size).tolist()
        both_N2 = torch.stack([predicted_N, batch.label_ids], dim=1)
        both_BL2 = pad_sequence(both_N2.split(counts), batch_first=True, padding_value=IGNORED)
        both_BL2 = accelerator.pad_across_processes(both_BL2, dim=1, pad_index=IGNORED)
        self._rows += accelerator.gather(both_BL2).cpu()

    def rectangles(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Predicted and true ids, (E, L) int64 each, of the first `size` examples; `IGNORED` where a row has no more."""
        both_EL2 = pad_sequence(self._rows[:size], batch_first=True, padding_value=IGNORED).numpy()
        predicted_EL, labels_EL = both_EL2[:, : int((both_EL2[..., 1] != IGNORED).sum(1).max()), :].transpose(2, 0, 1)
        return predicted_EL, labels_EL


# What is shown


def short(logs: dict[str, Any], metrics: Sequence[str] = ()) -> str:
    """A log entry in one line: ``lm 2.4312  jepa 0.0687  cos 0.931  tok/s 3112``; `metrics` are those of answers."""
    shown = [*_SHOWN, *((f"eval_{name}", name, ".3f", "") for name in metrics)]
    return "  ".join(
        f"{name} {logs[key]:{form}}" for key, name, form, _ in shown if isinstance(logs.get(key), (int, float))
    )


def meanings(makes_pairs: bool, evaluates: bool, gradients: bool) -> dict[str, str]:
    """What the words of the log's lines mean, of runs that make pairs, evaluate, compare gradients."""
    words = {"jepa": makes_pairs, "cos": makes_pairs, "eval": evaluates, "grad": gradients}
    left_out = [word for word, shown in words.items() if not shown]
    return {name: words for _, name, _, words in _SHOWN if not any(word in name for word in left_out)}


def clock(seconds: float) -> str:
    """``0:01:05``."""
    return str(timedelta(seconds=round(seconds)))


class RunDisplay(TrainerCallback):
    """One plain line a log entry; on a terminal one bar on standard error with the last losses, the speed and the time left,
    and a second one below it while the model is evaluated. Evaluation losses are lines above it, as is what others print.

    It is drawn when a step ends, by no thread of its own: worker processes are forked meanwhile.

    Args:
        disable_tqdm: lines on a terminal, too.
        metrics: names of the scores of answers.
        keep_losses: losses are lines above the bar, too.
    """

    def __init__(self, disable_tqdm: bool = False, metrics: Sequence[str] = (), keep_losses: bool = False):
        console = Console(stderr=True)
        self.has_bar = sys.stderr.isatty() and console.is_terminal and not console.is_dumb_terminal
        self.has_bar = self.has_bar and not disable_tqdm and not is_quiet()
        self.metrics, self._keep_losses = metrics, keep_losses
        self._progress: Progress | None = None
        self._bars: dict[str, TaskID] = {}
        self._drawn = 0.0
        self._redirected: list[tuple[logging.StreamHandler, Any]] = []

    def on_train_begin(self, args, state, control, **kwargs):
        """See `TrainerCallback`."""
        if self.has_bar and state.is_world_process_zero:
            self._add_bar(_TRAINING, state.max_steps, state.global_step)

    def on_step_end(self, args, state, control, **kwargs):
        """See `TrainerCallback`."""
        self._update(_TRAINING, completed=state.global_step)

    def on_prediction_step(self, args, state, control, eval_dataloader=None, **kwargs):
        """See `TrainerCallback`."""
        if self.has_bar and state.is_world_process_zero:
            begins = _EVALUATION not in self._bars
            if begins:
                self._add_bar(_EVALUATION, len(eval_dataloader), 0)
            self._update(_EVALUATION, at_once=begins, advance=1)

    def on_log(self, args, state, control, logs=None, **kwargs):
        """See `TrainerCallback`."""
        losses = short(logs or {}, self.metrics)
        if not state.is_world_process_zero or not losses:
            return
        in_bar = "lm_loss" in logs and _TRAINING in self._bars
        line = f"step {state.global_step}/{state.max_steps}  {losses}"
        if self._progress is None or not sys.stdout.isatty():
            say(line)
        elif not in_bar or self._keep_losses:
            self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
        if in_bar:
            self._update(_TRAINING, at_once=True, note=losses)

    def end_evaluation(self) -> None:
        """Take the evaluation's bar away; called after every evaluation, also one that failed."""
        if self._progress is not None and _EVALUATION in self._bars:
            self._progress.remove_task(self._bars.pop(_EVALUATION))
            if not self._bars:
                self.close()

    def on_train_end(self, args, state, control, **kwargs):
        """See `TrainerCallback`."""
        self.close()

    def close(self) -> None:
        """Leave the bar as it stands, and the terminal as it was; called when training ends, in whatever way."""
        if self._progress is not None:
            for handler, stream in self._redirected:
                handler.setStream(stream)
            self._progress.stop()
        self._progress, self._bars, self._redirected = None, {}, []

    def _add_bar(self, name: str, total: int, completed: int) -> None:
        progress = self._progress = self._progress or self._open()
        self._bars[name] = progress.add_task(name, total=total, completed=completed, note="")
        self._update(name, at_once=True)

    def _update(self, name: str, at_once: bool = False, **changes: Any) -> None:
        if self._progress is None or name not in self._bars:
            return
        self._progress.update(self._bars[name], **changes)
        if at_once or time.monotonic() - self._drawn >= _PAUSE:
            self._drawn = time.monotonic()
            self._progress.refresh()

    def _open(self) -> Progress:
        console = Console(stderr=True)
        note = Column(no_wrap=True, overflow="ellipsis", max_width=max(console.width - 32, 8))
        progress = Progress(
            TextColumn("{task.description}{task.completed}/{task.total}", markup=False),
            BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=4)),
            TextColumn("{task.fields[note]}", markup=False, table_column=note),
            TimeRemainingColumn(elapsed_when_finished=True, table_column=Column(no_wrap=True)),
            console=console,
            auto_refresh=False,
            expand=True,
            speed_estimate_period=float("inf"),  # of the last 1,000 steps, however long they take
            redirect_stdout=sys.stdout.isatty(),  # what goes to a file stays there
        )
        before = sys.stderr
        progress.start()
        console.show_cursor()  # so that a signal that ends the process leaves it, too
        # Handlers hold the stream of their first day, which a redirected `sys.stderr` does not reach.
        loggers = [logging.root, *(one for one in logging.root.manager.loggerDict.values() if hasattr(one, "handlers"))]
        handlers = [handler for logger in loggers for handler in logger.handlers]
        streams = [handler for handler in handlers if isinstance(handler, logging.StreamHandler)]
        self._redirected = [(handler, before) for handler in streams if handler.stream is before]
        for handler, _ in self._redirected:
            handler.setStream(sys.stderr)
        return progress
