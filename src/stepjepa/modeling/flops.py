"""Floating point operations of a training step, computed only from the shapes of a collated batch.

The operations are those that `torch.utils.flop_counter` counts: matrix products, 2 FLOPs per multiply-add, and the scores
and values of attention. `ModelCost.of` counts those of a few passes of a few tokens, forward and backward, through the model
itself, with its frozen weights, attention, gradient checkpointing, and experts per token. Embeddings, norms, softmax,
activations, the losses and the optimizer are not counted, nor are costs of a call that do not depend on its length (LoRA on
experts).

A query pays for every key of its call. Under a dense mask these are all T tokens of its row: causality, windows and padding
save nothing (FlexAttention skips blocks, so for it this is an upper bound). In attention by segments they are the tokens of
its segment and, for a branch, of its trunk.

Shapes: R rows, T tokens per row, L = R * T, N labelled positions, D width.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count
from transformers import PreTrainedModel

from stepjepa.data.types import Batch, Rows
from stepjepa.losses.lm import chunk_rows
from stepjepa.modeling.extras import target_encoder, trained_extras
from stepjepa.modeling.forward import run_backbone
from stepjepa.modeling.masks import attention_in, attention_of, segment_plan
from stepjepa.modeling.parts import causal_lm, embedding_rows, output_head, unchanged
from stepjepa.objectives.base import Objective


def _attention(*shapes: Any, backward: bool = False, **_: object) -> int:
    # The backward kernel has the gradient of the output as its first argument.
    q, k, v = shapes[backward : 3 + backward]
    # Keys and values are counted with the query's number of heads: before torch 2.12 its formulas refuse grouped queries.
    expanded = q, q[:2] + k[2:], q[:2] + v[2:]
    return (
        sdpa_backward_flop_count(shapes[0], *expanded) if backward else sdpa_flop_count(*expanded)
    )


# Kernels without a formula in torch's counter: attention on CPU, or with fewer key heads than query heads before torch 2.12,
# and the product of several experts at once.
_ATEN = torch.ops.aten
_EXPERTS = "_grouped_mm"
_KINDS = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")
KERNELS: dict[Any, Callable[..., int]] = {
    **{getattr(_ATEN, f"_scaled_dot_product_{kind}"): _attention for kind in _KINDS},
    **{
        getattr(_ATEN, f"_scaled_dot_product_{kind}_backward"): partial(_attention, backward=True)
        for kind in _KINDS
    },
    getattr(_ATEN, _EXPERTS): lambda a, b, *_, **__: 2 * a[0] * a[1] * b[-1],
}


# FLOPs per second of dense matrix products in bfloat16 (float16 on older cards), in units of 1e12: NVIDIA's data sheets.
_CARDS = {
    "B200": 2250,
    "H200": 989,
    "GH200": 989,
    "H100": 989,
    "H100 PCIe": 756,
    "H100 NVL": 835,
    "H20": 148,
    "A100": 312,
    "A800": 312,
    "A40": 150,
    "A30": 165,
    "A10": 125,
    "L40S": 362,
    "L40": 181,
    "L4": 121,
    "V100": 125,
    "T4": 65,
    "RTX 4090": 165,
    "RTX 3090": 71,
    "RTX A6000": 155,
}


def card_peak(name: str) -> float | None:
    """The most FLOPs per second that a card of this name can compute in bfloat16; None for an unknown card."""
    words = f" {re.sub('[^A-Za-z0-9]+', ' ', name)} "
    known = [card for card in _CARDS if f" {card} " in words]
    return 1e12 * _CARDS[max(known, key=len)] if known else None


class PassCost(NamedTuple):
    """FLOPs of the backbone.

    Attributes:
        token: per token, without `read`.
        read: per token whose last state is read: the MLP that `forward.trimmed` omits for other tokens.
        key: per pair of a query and a key.
    """

    token: float
    read: float
    key: float


@dataclass(frozen=True)
class ModelCost:
    """FLOPs of one token in each part of a model.

    Attributes:
        train: the backbone, with a backward pass.
        forward: the backbone of the model that encodes the targets, without a backward pass.
        label: the LM head at a labelled position; `label_again` is the part computed twice if the logits are computed
            in chunks.
        chunk: number of labelled positions of a batch above which they are computed in chunks.
        source: the predictor head at a source.
        objective: `Objective.flops` as a function of the number of pairs.
    """

    train: PassCost
    forward: PassCost
    label: float
    label_again: float
    chunk: int
    source: float
    objective: Callable[[int], float] = lambda pairs: 0.0

    @classmethod
    def of(
        cls,
        model: nn.Module,
        vocabulary: int,
        *,
        autocast: bool = False,
        objective: Objective | None = None,
    ) -> ModelCost:
        """Measure the cost of a model in its current state, which is restored; `vocabulary` is the size of its LM
        softmax."""
        inner = causal_lm(model)
        head, predictor = output_head(inner, vocabulary), trained_extras(inner).head
        embedding = embedding_rows(inner)
        device, ids = embedding.device, torch.arange(6, device=embedding.device)

        def states(tokens: int, read: int, of: PreTrainedModel = inner) -> Tensor:
            known_ids = ids[None, :tokens] % len(embedding)
            return run_backbone(of, known_ids, None, ids[None, :tokens], ids[:read])[0].flatten(
                0, 1
            )

        def backbone(of: PreTrainedModel = inner) -> PassCost:
            # t tokens, of which r are read, cost  t * token + r * read + t^2 * key  and a constant. Four passes determine
            # the three costs: the second difference over t = 2, 4, 6 is 8 * key.
            two, four, six, less = (
                count(partial(states, *sizes, of)) for sizes in ((2, 2), (4, 4), (6, 6), (4, 2))
            )
            key, read = (two - 2 * four + six) / 8, (four - less) / 2
            return PassCost((four - two - 12 * key) / 2 - read, read, key)

        def label(rows: int) -> float:
            return (
                count(
                    lambda: head.loss_sum(inner, last_states.requires_grad_(needed), ids[:4], rows)
                )
                / 4
            )

        def count(run: Callable[[], Tensor]) -> float:
            with FlopCounterMode(display=False, custom_mapping=KERNELS) as counter:
                result = run()
                if result.requires_grad:
                    result.float().sum().backward()
            return float(counter.get_total_flops())

        with _measured(inner), torch.autocast(device.type, torch.bfloat16, enabled=autocast):
            with torch.no_grad():
                forward, last_states = backbone(), states(4, 4)
            with torch.enable_grad():
                needed = states(2, 2).requires_grad
                train, whole = backbone(), label(4)
                # With a fused kernel, which the counter does not see, the difference would be negative.
                again = max(label(2) - whole, 0.0)
                source = 0.0
                if predictor is not None:
                    source = count(lambda: predictor(last_states.detach().requires_grad_())) / 4
            encoder = target_encoder(inner)
            if isinstance(encoder, PreTrainedModel):
                with _measured(encoder), torch.no_grad():
                    forward = backbone(encoder)
        cost = cls(train, forward, whole, again, chunk_rows(vocabulary), source)
        if objective is None:
            return cost
        flops = partial(objective.flops, width=last_states.shape[1], vocabulary=head.vocabulary)
        return replace(cost, objective=flops)

    def heads(self, labels: int, sources: int) -> float:
        """FLOPs of the LM head at `labels` positions, and of the predictor head and the objective at `sources`."""
        at_sources = sources * self.source + self.objective(sources)
        return labels * (self.label + (labels > self.chunk) * self.label_again) + at_sources


@contextmanager
def _measured(inner: PreTrainedModel) -> Iterator[None]:
    """Within this context a model is in training mode, keeps no gradients, and uses an attention that can be counted."""
    # Hooks would run an optimizer step or a reduction on the gradients of the measurement, which would also be added to
    # existing gradients, so both are set aside.
    parameters = [parameter for parameter in inner.parameters() if parameter.requires_grad]
    kept = [
        (weight, weight.grad, dict(weight._post_accumulate_grad_hooks or {}))
        for weight in parameters
    ]
    attention = "eager" if attention_in(inner) == "eager" else "sdpa"
    drops = []
    for weight in parameters:
        weight.grad = None
        (weight._post_accumulate_grad_hooks or {}).clear()
        # Each gradient is freed at once, so the memory for all of them is never needed.
        drops.append(
            weight.register_post_accumulate_grad_hook(lambda weight: setattr(weight, "grad", None))
        )
    try:
        with attention_of(inner, attention), unchanged(inner, training=True):
            yield
    finally:
        for drop, (weight, gradient, hooks) in zip(drops, kept, strict=True):
            drop.remove()
            weight.grad = gradient
            weight._post_accumulate_grad_hooks.update(hooks)


def batch_flops(batch: Batch, cost: ModelCost) -> float:
    """FLOPs of forward and backward on one batch, padding included; `target_rows` have only a forward pass."""
    total = cost.heads(len(batch.label_positions), batch.pairs)
    for rows in batch.every_rows:
        tokens = rows.input_ids.numel()
        read = tokens if rows.read_positions is None else len(rows.read_positions)
        price = cost.forward if rows is batch.target_rows else cost.train
        total += tokens * price.token
        total += read * price.read
        total += _keys(rows) * price.key
    return total


def _keys(rows: Rows) -> int:
    """The number of keys, summed over all queries."""
    if rows.forests is None:
        return rows.input_ids.numel() * rows.input_ids.shape[1]
    keys = 0
    for segments in segment_plan(rows):
        for segment in segments:
            seen = segment.length + segment.branch * segments[0].length
            keys += segment.length * seen
    return keys
