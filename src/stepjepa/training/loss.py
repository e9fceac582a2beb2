"""The loss of an optimizer step: its sum, lambda, whether it is finite, and whether its parts pull the same way.

The cosine between the gradients of the LM loss and of the JEPA part is the number that gradient surgery and audits of
auxiliary losses report (Yu et al. 2020, arXiv:2001.06782, definition 1; arXiv:2605.15394 for JEPA): above 0 the parts agree,
at 0 they do not touch each other, below 0 they conflict. `gamma` and `lbd` do not change it. One backward pass more gives
the JEPA part's gradient. That of the LM loss is what it leaves of the step's own, which the chunked cross-entropy computes
once only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import torch
from accelerate import Accelerator

from stepjepa.data.types import LM, LossParts
from stepjepa.modeling.load import broken_weights
from stepjepa.modeling.parts import backbone, causal_lm, decoder_layers, local, name_of
from stepjepa.training.metrics import over_processes
from stepjepa.training.options import GRADIENT_COSINE, LAYER_COSINE, JEPAOptions


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


class FiniteWatch:
    """Keeps on the device at which optimizer step the loss first was NaN or infinite: no step waits for it.

    Attributes:
        broken_step: what `first_broken` has found, 0 for none.
    """

    def __init__(self, device: torch.device):
        self.broken_step = 0
        self._first = torch.zeros((), device=device)  # the step, 0 for none

    def add(self, step: int, loss: torch.Tensor) -> None:
        """Look at the loss of a micro-batch, (), in optimizer step `step` (1 is the first)."""
        is_first = ~loss.detach().isfinite() & (self._first == 0)
        self._first = torch.where(is_first, torch.full_like(self._first, step), self._first)

    def first_broken(self, accelerator: Accelerator) -> int | None:
        """The first broken step of all processes, where that is news; else None.

        Waits for the device, and every process must call it.
        """
        steps = accelerator.gather(self._first.reshape(1)).tolist()
        broken = [int(step) for step in steps if step]
        if self.broken_step or not broken:
            return None
        self.broken_step = min(broken)
        return self.broken_step


def weights_are_finite(model: torch.nn.Module, accelerator: Accelerator) -> bool:
    """Whether all weights that are trained are finite, on all processes. Every process must call it."""
    # Of what is sharded, this process's part.
    own = {name: local(weight.detach()) for name, weight in model.named_parameters() if weight.requires_grad}
    return over_processes([float(bool(broken_weights(own)))], accelerator) == [0.0]


class GradientCosine:
    """The gradient of the JEPA part, summed over the micro-batches of one optimizer step.

    Args:
        model: whose trained weights it is taken of, predictor rows and heads included.
    """

    def __init__(self, model: torch.nn.Module):
        inner = causal_lm(model)
        layers = re.escape(name_of(inner, decoder_layers(backbone(inner))))
        number = re.compile(rf"(?:^|\.){layers}\.(\d+)\.")
        self._layers: list[int] = []  # 1 of the first, 0 of what is in none
        self._weights: list[torch.nn.Parameter] = []
        for name, weight in model.named_parameters():
            if weight.requires_grad:
                match = number.search(name)
                self._layers.append(0 if match is None else 1 + int(match[1]))
                self._weights.append(weight)
        self._sums: list[torch.Tensor] = []

    def add(self, jepa: torch.Tensor) -> None:
        """Add the JEPA part of a micro-batch's loss, () with lambda 1, in the scale of the loss; its graph is kept."""
        gradients = torch.autograd.grad(jepa, self._weights, retain_graph=True, materialize_grads=True)
        self._sums = [a + b for a, b in zip(self._sums, gradients, strict=True)] if self._sums else list(gradients)

    def cosines(self, lbd: float, accelerator: Accelerator) -> dict[str, float]:
        """The cosine over all trained weights and over those of each layer, by the names of the log; a layer without a
        gradient of one of the parts is left out. Every process must call it.

        Args:
            lbd: lambda of the step, whose gradient the weights have, before it is clipped.
        """
        products_L3 = torch.zeros(1 + max(self._layers), 3, device=accelerator.device)
        for layer, weight, own in zip(self._layers, self._weights, self._sums, strict=True):
            jepa = accelerator.reduce(own, reduction="mean").float().flatten()
            # What the step's gradient has besides lambda times the JEPA part's is the LM loss's.
            language = -lbd * jepa
            if weight.grad is not None:
                language += weight.grad.float().flatten()
            products = [jepa @ language, jepa @ jepa, language @ language]
            products_L3[layer] += torch.stack(products)
        products_L3[0] = products_L3.sum(dim=0)
        cosines = {}
        for number, (both, jepa_square, language_square) in enumerate(products_L3.tolist()):
            square = jepa_square * language_square
            name = f"{LAYER_COSINE}{number - 1}" if number else GRADIENT_COSINE
            if square > 0:
                cosines[name] = both / square**0.5
        return cosines
