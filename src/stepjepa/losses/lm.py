"""Cross-entropy of a linear head at the labelled positions, without the logits of all positions in memory at once.

Shapes: N labelled positions, D width, V vocabulary, C rows of a chunk.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

# Bound on float32 logits held at once. Below it, the plain form is fastest; above it, chunks bound the memory.
MAX_LOGITS_BYTES = 256 * 2**20


def scaled_logits(logits: Tensor, scale: float, softcap: float | None) -> Tensor:
    """Transform logits (any shape) as some models do: ``scale * x`` (Cohere, Granite), ``cap * tanh(x / cap)`` (Gemma 2)."""
    logits = logits * scale if scale != 1.0 else logits
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)


def linear_cross_entropy_sum(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    labels_N: Tensor,
    bias_V: Tensor | None = None,
    scale: float = 1.0,
    softcap: float | None = None,
    rows: int | None = None,
    token_sums: bool = False,
) -> Tensor:
    """Summed cross-entropy of ``softcap(scale * (hidden @ weight.T + bias))`` against the labels.

    If the states are more than `rows`, their logits are computed in chunks, and again in the backward pass.

    Args:
        hidden_ND: (N, D) states that predict.
        weight_VD, bias_V: output embedding.
        labels_N: (N,) int64.
        scale, softcap: see `scaled_logits`.
        rows: positions whose logits are in memory at once; None for `chunk_rows`.
        token_sums: see `chunked_cross_entropy_sum`.

    Returns:
        () float32, or (3,) with `token_sums`.
    """

    def head(chunk_CD: Tensor) -> Tensor:
        return scaled_logits(F.linear(chunk_CD, weight_VD, bias_V), scale, softcap)

    rows = rows or chunk_rows(weight_VD.shape[0])
    return chunked_cross_entropy_sum(head, hidden_ND, labels_N, rows, token_sums)


def chunk_rows(vocabulary: int) -> int:
    """Rows of float32 logits that fit into `MAX_LOGITS_BYTES`, at least 1."""
    return max(1, MAX_LOGITS_BYTES // (4 * vocabulary))


def chunked_cross_entropy_sum(
    head: Callable[[Tensor], Tensor],
    hidden_ND: Tensor,
    labels_N: Tensor,
    rows: int,
    token_sums: bool = False,
) -> Tensor:
    """Summed cross-entropy of ``head(hidden)``, `rows` positions at a time.

    Args:
        head: (C, D) -> (C, V) logits.
        hidden_ND: (N, D).
        labels_N: (N,) int64.
        rows: positions per chunk.
        token_sums: whether to also count the labels that are the most likely token, and sum the entropies (nats).

    Returns:
        () float32; zero if N = 0, but still connected to the logits. With `token_sums` (3,): loss, count, entropy.
    """

    def chunk_loss(chunk_CD: Tensor, labels_C: Tensor) -> Tensor:
        logits_CV = head(chunk_CD).float()
        loss = F.cross_entropy(logits_CV, labels_C, reduction="sum")
        if not token_sums:
            return loss
        with torch.no_grad():
            right_C = logits_CV.argmax(dim=-1) == labels_C
            entropy = torch.special.entr(logits_CV.softmax(dim=-1)).sum()
        return torch.stack([loss, right_C.sum().float(), entropy])

    return chunked_sum(chunk_loss, rows, hidden_ND, labels_N)


def chunked_sum(
    chunk_loss: Callable[..., Tensor],
    rows: int,
    hidden_ND: Tensor,
    *others: Tensor,
) -> Tensor:
    """The sum of ``chunk_loss(hidden, *others)`` over chunks of `rows` positions; all its results are float32 of one shape.

    If there is more than one chunk, each is checkpointed: its intermediate values are computed again in the backward pass.

    Args:
        hidden_ND, others: (N, ...) each.

    Returns:
        () or (3,), the shape that `chunk_loss` returns; if N = 0, the loss of no positions, still connected to the states.
    """
    if hidden_ND.shape[0] <= rows:
        return chunk_loss(hidden_ND, *others)
    total = hidden_ND.new_zeros((), dtype=torch.float32)
    for chunk in zip(*(tensor.split(rows) for tensor in (hidden_ND, *others)), strict=True):
        total = total + checkpoint(
            chunk_loss, *chunk, use_reentrant=False, preserve_rng_state=False
        )
    return total
