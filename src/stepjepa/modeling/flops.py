"""Floating point operations of a training step, from the shapes of a collated batch alone, by kind of token.

What counts is what `torch.utils.flop_counter` counts: matrix products, 2 FLOPs a multiply-add, and the scores and values of
attention. `ModelCost.of` lets it count a few passes of a few tokens, forward and backward, as the model is: what is frozen,
its attention, gradient checkpointing, experts that a token is sent to. Embeddings, norms, softmax, activations, the losses
and the optimizer are not counted, nor is what a call costs whatever its length (LoRA on experts).

A query pays for every key of its call: for all T tokens of its row under a dense mask (causality, windows and padding save
nothing; FlexAttention skips blocks, so for it this is an upper bound), for the keys of its segment where a batch attends by
segments.

Shapes: R rows, T tokens a row, L = R * T, N labelled positions, D width.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count
from transformers import PreTrainedModel

from stepjepa.data.types import ISOLATED, TRUNK, Batch, Rows
from stepjepa.forest.visibility import packed_fields
from stepjepa.losses.lm import chunk_rows
from stepjepa.modeling.extras import OtherEncoder, target_encoder, trained_extras
from stepjepa.modeling.forward import run_backbone
from stepjepa.modeling.masks import attention_of, segment_plan
from stepjepa.modeling.parts import causal_lm, embedding_rows, output_head, text_config, unchanged
from stepjepa.objectives.base import Objective

# "head" is the LM head at labelled positions, the predictor head, if there is one, at the sources, and what the objective
# computes with modules of its own.
KINDS = ("trunk", "branch", "target", "head", "padding")
_TRUNK, _BRANCH, _TARGET, _, _PADDING = range(len(KINDS))


def _attention(*shapes: Any, backward: bool = False, **_: object) -> int:
    q, k, v = shapes[backward : 3 + backward]
    every = q, q[:2] + k[2:], q[:2] + v[2:]
    return sdpa_backward_flop_count(shapes[0], *every) if backward else sdpa_flop_count(*every)


# Kernels that torch's counter has no formula for: attention on CPU, and with fewer keys than queries before torch 2.12; and
# the product of several experts at once.
_ATEN = torch.ops.aten
_EXPERTS = "_grouped_mm"
_KINDS = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")
KERNELS: dict[Any, Callable[..., int]] = {
    **{getattr(_ATEN, f"_scaled_dot_product_{kind}"): _attention for kind in _KINDS},
    **{getattr(_ATEN, f"_scaled_dot_product_{kind}_backward"): partial(_attention, backward=True) for kind in _KINDS},
    getattr(_ATEN, _EXPERTS): lambda a, b, *_, **__: 2 * a[0] * a[1] * b[-1],
}


# FLOPs a second of dense matrix products in bfloat16 (float16 on the older ones), in units of 1e12: NVIDIA's data sheets.
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
    """FLOPs a second that a card of this name computes at most, in bfloat16; None for an unknown one."""
    words = f" {re.sub('[^A-Za-z0-9]+', ' ', name)} "
    known = [card for card in _CARDS if f" {card} " in words]
    return 1e12 * _CARDS[max(known, key=len)] if known else None


class PassCost(NamedTuple):
    """FLOPs in the backbone.

    Attributes:
        token: of a token, without what `read` has.
        read: of a token whose last state is read: the MLP that `forward.trimmed` leaves out at the others.
        key: of a query and a key.
    """

    token: float
    read: float
    key: float


@dataclass(frozen=True)
class ModelCost:
    """What one token costs.

    Attributes:
        train: in the backbone, with a backward pass.
        forward: without, in that of the model that encodes the targets.
        label: the LM head at a labelled position; `label_again` what is computed twice where the logits come in chunks.
        chunk: labelled positions of a batch beyond which they do.
        source: the predictor head at one source.
        objective: `Objective.flops` of a number of pairs.
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
        cls, model: nn.Module, vocabulary: int, *, autocast: bool = False, objective: Objective | None = None
    ) -> ModelCost:
        """The cost of a model as it stands, which is left as it was; V of its LM softmax is `vocabulary`."""
        inner = causal_lm(model)
        head, predictor = output_head(inner, vocabulary), trained_extras(inner).head
        embedding = embedding_rows(inner)
        device, ids = embedding.device, torch.arange(6, device=embedding.device)

        def states(tokens: int, read: int, of: PreTrainedModel = inner) -> torch.Tensor:
            own = ids[None, :tokens] % len(embedding)
            return run_backbone(of, own, None, ids[None, :tokens], ids[:read])[0].flatten(0, 1)

        def backbone(of: PreTrainedModel = inner) -> PassCost:
            two, four, six, less = (count(partial(states, *sizes, of)) for sizes in ((2, 2), (4, 4), (6, 6), (4, 2)))
            key, read = (two - 2 * four + six) / 8, (four - less) / 2
            return PassCost((four - two - 12 * key) / 2 - read, read, key)

        def label(rows: int) -> float:
            return count(lambda: head.loss_sum(inner, given.requires_grad_(needed), ids[:4], rows)) / 4

        def count(run: Callable[[], torch.Tensor]) -> float:
            with FlopCounterMode(display=False, custom_mapping=KERNELS) as counter:
                result = run()
                if result.requires_grad:
                    result.float().sum().backward()
            return float(counter.get_total_flops())

        with _spared(inner), torch.autocast(device.type, torch.bfloat16, enabled=autocast):
            with torch.no_grad():
                forward, given = backbone(), states(4, 4)
            with torch.enable_grad():
                needed = states(2, 2).requires_grad
                train, whole = backbone(), label(4)
                again = max(label(2) - whole, 0.0)  # a kernel that the counter does not see repeats nothing
                source = 0.0 if predictor is None else count(lambda: predictor(given.detach().requires_grad_())) / 4
            encoder = target_encoder(inner)
            if isinstance(encoder, OtherEncoder):
                with _spared(encoder.other), torch.no_grad():
                    forward = backbone(encoder.other)
        own = () if objective is None else (partial(objective.flops, width=given.shape[1], vocabulary=head.vocabulary),)
        return cls(train, forward, whole, again, chunk_rows(vocabulary), source, *own)

    def heads(self, labels: int, sources: int) -> float:
        """FLOPs of the LM head at `labels` positions, and of the predictor head and the objective at `sources`."""
        own = sources * self.source + self.objective(sources)
        return labels * (self.label + (labels > self.chunk) * self.label_again) + own


@contextmanager
def _spared(inner: PreTrainedModel) -> Iterator[None]:
    """Within this context a model in training mode takes no gradients, and its attention has a kernel that is counted."""
    parameters = [parameter for parameter in inner.parameters() if parameter.requires_grad]
    kept = [(one, one.grad, dict(one._post_accumulate_grad_hooks or {})) for one in parameters]
    attention = "eager" if text_config(inner.config)._attn_implementation == "eager" else "sdpa"
    drops = []
    for one in parameters:
        one.grad = None
        (one._post_accumulate_grad_hooks or {}).clear()
        drops.append(one.register_post_accumulate_grad_hook(lambda one: setattr(one, "grad", None)))
    try:
        with attention_of(inner, attention), unchanged(inner, training=True):
            yield
    finally:
        for drop, (one, gradient, hooks) in zip(drops, kept, strict=True):
            drop.remove()
            one.grad = gradient
            one._post_accumulate_grad_hooks.update(hooks)


def batch_flops(batch: Batch, cost: ModelCost) -> dict[str, float]:
    """FLOPs of forward and backward on one batch, by `KINDS`.

    A token counts as ``trunk`` (segment 0), as ``branch`` where its segment sees the trunk or holds a source's readout, else
    as ``target`` or ``padding``. An `inline` sequence is all trunk. In the two-pass form a source's row is ``branch``, the
    beginning of the trunk that it repeats included. Only a forward pass runs on `target_rows`.
    """
    flops = dict.fromkeys(KINDS, 0.0)
    kinds = len(KINDS)
    for rows, kinds_L, gradient in _passes(batch):
        # Of every kind: its tokens, those whose states are read, and the keys that their queries are given.
        read_L = kinds_L if rows.read_positions is None else kinds_L[rows.read_positions]
        tokens = torch.bincount(kinds_L, minlength=kinds).tolist()
        reads = torch.bincount(read_L, minlength=kinds).tolist()
        keys = torch.bincount(kinds_L, _keys(rows).double(), minlength=kinds).tolist()
        price = cost.train if gradient else cost.forward
        for kind, name in enumerate(KINDS):
            flops[name] += tokens[kind] * price.token
            flops[name] += reads[kind] * price.read
            flops[name] += keys[kind] * price.key
    flops["head"] += cost.heads(len(batch.label_positions), batch.pairs)
    return flops


def _passes(batch: Batch) -> Iterator[tuple[Rows, torch.Tensor, bool]]:
    """The calls of the backbone on one batch, as `modeling.forward` makes them: the rows, the kind of each token (L,) int64,
    and whether there is a backward pass."""
    for rows in batch.every_rows:
        kinds = torch.full_like(rows.input_ids, _TRUNK if rows is batch.rows else _TARGET)
        if rows is batch.views:
            kinds[: batch.branches] = _BRANCH
        elif rows is batch.rows and rows.example is not None:
            kinds = _kinds(batch)
        yield rows, torch.where(rows.filled, kinds, _PADDING).flatten(), rows is not batch.target_rows


def _kinds(batch: Batch) -> torch.Tensor:
    """(R, T) int64, the kind of each token of packed rows that is no padding."""
    example, segment, _, attach = packed_fields(batch.rows)
    on_trunk = segment == TRUNK
    # Standalone sources see no trunk either; what is read of them tells them from targets.
    number = segment + example * (segment.max() + 1)  # of the segment, in the whole batch
    source_numbers = number.flatten()[batch.sources.positions]
    of_source = (attach != ISOLATED) | torch.isin(number, source_numbers)
    kinds = torch.full_like(segment, _TARGET)
    kinds[of_source] = _BRANCH
    kinds[on_trunk] = _TRUNK
    return kinds


def _keys(rows: Rows) -> torch.Tensor:
    """(L,) int64, the number of keys that each token's query is given."""
    keys = torch.full_like(rows.input_ids, rows.input_ids.shape[1]).flatten()
    if rows.forests is not None:
        keys = torch.zeros_like(keys)
        forests = sorted(rows.forests.tolist())
        for (begin, _), segments in zip(forests, segment_plan(rows).forests, strict=True):
            for segment in segments:
                keys[begin : begin + segment.length] = segment.length + segment.branch * segments[0].length
                begin += segment.length
    return keys
