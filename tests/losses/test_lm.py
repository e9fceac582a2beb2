"""The LM loss: the form with bounded memory against the plain one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from stepjepa.losses.lm import linear_cross_entropy_sum


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("scale", "softcap", "count"), [(1.0, None, 37), (0.3, None, 37), (1.0, 5.0, 37), (1.0, None, 0)]
)
def test_bounded_memory_form_equals_plain(bias, scale, softcap, count):
    torch.manual_seed(0)
    hidden, weight = torch.randn(count, 16), torch.randn(50, 16)
    offset = torch.randn(50) if bias else None
    labels = torch.randint(0, 50, (count,))
    results = []
    for rows in (None, 8):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        loss = linear_cross_entropy_sum(h, w, labels, offset, scale, softcap, rows=rows)
        (loss * 0.7).backward()
        results.append((loss.detach(), h.grad, w.grad))
    for plain, bounded in zip(*results, strict=True):
        torch.testing.assert_close(bounded, plain, rtol=1e-5, atol=1e-5)
    logits = hidden @ weight.T + (offset if bias else 0)
    logits = scale * logits if softcap is None else softcap * torch.tanh(scale * logits / softcap)
    torch.testing.assert_close(results[0][0], F.cross_entropy(logits, labels, reduction="sum"), rtol=1e-5, atol=1e-4)


def test_chunked_logits_are_never_held_whole():
    """The largest tensor that is made stays far below N x V, forward and backward."""
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, kinds, args=(), kwargs=None):
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            for value in torch.utils._pytree.tree_leaves(result):
                if isinstance(value, torch.Tensor):
                    largest = max(largest, value.numel())
            return result

    rows, vocabulary, width = 512, 20_000, 8
    hidden = torch.randn(rows, width, requires_grad=True)
    weight = torch.randn(vocabulary, width, requires_grad=True)
    labels = torch.randint(0, vocabulary, (rows,))
    with Watch():
        loss = linear_cross_entropy_sum(hidden, weight, labels, softcap=30.0, rows=32)
        loss.backward()
    assert 32 * vocabulary <= largest <= 64 * vocabulary
    assert weight.grad.abs().sum() > 0 and hidden.grad.abs().sum() > 0
