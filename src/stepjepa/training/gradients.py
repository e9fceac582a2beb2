"""The cosine between the gradients of the LM loss and of the JEPA part: whether the two pull the weights the same way.

The number that gradient surgery and audits of auxiliary losses report (Yu et al. 2020, arXiv:2001.06782, definition 1;
arXiv:2605.15394 for JEPA): above 0 the parts agree, at 0 they do not touch each other, below 0 they conflict. `gamma` and
`lbd` do not change it.

One backward pass more gives the JEPA part's gradient. That of the LM loss is what it leaves of the step's own, which the
chunked cross-entropy computes once only.
"""

from __future__ import annotations

import re

import torch
from accelerate import Accelerator

from stepjepa.modeling.parts import backbone, causal_lm, decoder_layers, name_of
from stepjepa.training.options import GRADIENT_COSINE, LAYER_COSINE


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
        found = torch.autograd.grad(jepa, self._weights, retain_graph=True, materialize_grads=True)
        self._sums = [a + b for a, b in zip(self._sums, found, strict=True)] if self._sums else list(found)

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
