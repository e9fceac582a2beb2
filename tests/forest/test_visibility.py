"""The rule, the layout and the masks against matrices typed by hand."""

from __future__ import annotations

import weakref
from functools import partial

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from stepjepa.data.types import Example
from stepjepa.forest import visibility
from stepjepa.forest.collate import PADDING, ForestCollator
from stepjepa.forest.layout import build_forest
from stepjepa.forest.visibility import additive_mask, block_mask, dense_mask, mask_mod
from stepjepa.modeling.forward import attach_forest_forward
from support.models import TRAINED_VOCABULARY, Views, made_up_example, made_up_examples, paired, tiny_model

EXAMPLE = paired([10, 11, 12, 13], [(2, 4)], [Views(1, 2, 4)], predictors=2)
# q down, k across: a b c d | p1 p2 | c' d'
EXPECTED = """
1 . . . . . . .
1 1 . . . . . .
1 1 1 . . . . .
1 1 1 1 . . . .
1 1 . . 1 . . .
1 1 . . 1 1 . .
. . . . . . 1 .
. . . . . . 1 1
"""


def matrix(text: str) -> torch.Tensor:
    return torch.tensor([[cell == "1" for cell in line.split()] for line in text.strip().splitlines()])


def rows_of(*examples, window=None, predictors=(90, 91), multiple=1, **options):
    """The packed rows of examples, and the mask of the only one."""
    rows = ForestCollator(predictors, 0, pad_to_multiple_of=multiple, **options)(examples).rows
    return rows, dense_mask(rows, window)[0, 0]


def in_blocks(dense):
    """Which blocks of 128 x 128 hold a pair."""
    return dense.unflatten(2, (-1, 128)).unflatten(4, (-1, 128)).any(5).any(3).int()


def test_layout():
    forest = build_forest(EXAMPLE, (90, 91))
    assert forest.input_ids.tolist() == [10, 11, 12, 13, 90, 91, 12, 13]
    assert forest.position_ids.tolist() == [0, 1, 2, 3, 2, 3, 4, 5]
    assert forest.segment.tolist() == [0, 0, 0, 0, 1, 1, 2, 2]
    assert forest.order.tolist() == [0, 1, 2, 3, 0, 1, 0, 1]
    assert forest.attach.tolist() == [-1, -1, -1, -1, 1, 1, -1, -1]
    assert (forest.label_positions.tolist(), forest.label_ids.tolist()) == ([1, 2], [12, 13])
    (pair,) = forest.example.pairs
    places = [forest.starts[term.segment] + term.token for read in pair[:2] for term in read.terms]
    assert places == [5, 7]
    assert len(forest) == 8


def test_dense_mask_of_one_example():
    assert torch.equal(rows_of(EXAMPLE)[1], matrix(EXPECTED))


def test_sliding_window_counts_positions_not_places():
    expected = """
    1 . . . . . . .
    1 1 . . . . . .
    . 1 1 . . . . .
    . . 1 1 . . . .
    . 1 . . 1 . . .
    . . . . 1 1 . .
    . . . . . . 1 .
    . . . . . . 1 1
    """
    assert torch.equal(rows_of(EXAMPLE, window=2)[1], matrix(expected))


def test_padding_sees_itself_only_and_nothing_sees_it():
    rows, mask = rows_of(EXAMPLE, multiple=10)
    assert torch.equal(mask, torch.block_diag(matrix(EXPECTED), torch.eye(2, dtype=torch.bool)))
    assert rows.example[0, 8:].tolist() == [PADDING, PADDING]


def test_two_examples_in_a_row_are_blind_to_each_other():
    _, mask = rows_of(EXAMPLE, Example(np.array([20, 21], np.int32), ((1, 2),)))
    assert torch.equal(mask, torch.block_diag(matrix(EXPECTED), matrix("1 .\n1 1")))


def test_a_second_branch_does_not_see_the_first():
    example = paired([10, 11, 12], [(1, 3)], [Views(0, 1, 2), Views(1, 2, 3)], predictors=1)
    expected = """
    1 . . . . . .
    1 1 . . . . .
    1 1 1 . . . .
    1 . . 1 . . .
    . . . . 1 . .
    1 1 . . . 1 .
    . . . . . . 1
    """
    assert torch.equal(rows_of(example, predictors=(90,))[1], matrix(expected))


def test_inline_isolates_the_target_and_nothing_after_it():
    """a b p1 p2 c d e in one sequence, of which c d is the target."""
    example = paired([10, 11, 12, 13, 14], [(2, 5)], [Views(1, 2, 4)], predictors=2)
    rows, mask = rows_of(example, inline=True)
    expected = """
    1 . . . . . .
    1 1 . . . . .
    1 1 1 . . . .
    1 1 1 1 . . .
    . . . . 1 . .
    . . . . 1 1 .
    1 1 1 1 1 1 1
    """
    assert rows.input_ids.tolist() == [[10, 11, 90, 91, 12, 13, 14]]
    assert torch.equal(mask, matrix(expected))


@pytest.mark.parametrize("window", [None, 6])
def test_block_mask_says_what_the_dense_mask_says(window):
    """In rows of two blocks; two examples that fill a block each have none between them."""
    full = [Example(np.full(128, 5 + number, np.int32), ((1, 128),)) for number in range(2)]
    forests = [build_forest(one, (96, 97)) for one in [*full, *made_up_examples(2)]]
    rows, _ = ForestCollator((96, 97), 0, 128).pack(forests, [range(2), range(2, 6)])
    dense, rule, blocks = dense_mask(rows, window), mask_mod(rows, window), block_mask(rows, window).to_dense()
    q, k = torch.arange(256)[:, None], torch.arange(256)[None, :]
    for row in range(2):
        assert torch.equal(rule(torch.tensor(row), torch.tensor(0), q, k), dense[row, 0])
    assert torch.equal(blocks, in_blocks(dense)) and blocks[0, 0].tolist() == [[1, 0], [0, 1]]


@pytest.mark.slow
def test_block_masks_are_compiled_once_for_all_batches_of_a_shape(monkeypatch):
    """As on a GPU, but for what the compiler makes of them."""
    counter = CompileCounter()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    monkeypatch.setattr(visibility, "_UNCOMPILED", ())
    visibility._block_mask_builder.cache_clear()
    try:
        for size, compiled in ((1, 1), (1, 1), (1, 1), (2, 2), (3, 2), (4, 2), (1, 2)):
            examples = [made_up_example(90 + size, [Views(30, 40, 60)], seed, 2) for seed in range(size)]
            rows, _ = ForestCollator((96, 97), 0, 128).pack(
                [build_forest(one, (96, 97)) for one in examples], [range(size)]
            )
            with torch.autocast("cpu", torch.bfloat16, enabled=size == 3):
                assert torch.equal(block_mask(rows).to_dense(), in_blocks(dense_mask(rows)))
            assert counter.frame_count == compiled
    finally:
        visibility._block_mask_builder.cache_clear()


class Peak(TorchDispatchMode):
    """Bytes of the tensors that are made within this context: how many are held now, and at most."""

    def __init__(self):
        super().__init__()
        self.held, self.most, self.known = 0, 0, weakref.WeakSet()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for storage in {leaf.untyped_storage() for leaf in tree_leaves(found) if isinstance(leaf, torch.Tensor)}:
            if storage not in self.known:
                self.known.add(storage)
                weakref.finalize(storage, self.drop, storage.nbytes())
                self.held += storage.nbytes()
        self.most = max(self.most, self.held)
        return found

    def drop(self, size):
        self.held -= size


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_additive_mask_is_built_in_little_more_than_its_own_memory(window, dtype):
    examples = [made_up_example(250, [Views(80, 90, 140)], seed, 2) for seed in range(4)]
    rows, _ = ForestCollator((96, 97), 0, 8).pack([build_forest(one, (96, 97)) for one in examples], [[0, 1, 2, 3]])
    with Peak() as peak:
        mask = additive_mask(rows, dtype, window)
    lowest, own = torch.finfo(dtype).min, mask.numel() * mask.element_size()
    assert torch.equal(mask, torch.where(dense_mask(rows, window), 0.0, lowest).to(dtype)) and mask.shape[-1] > 1000
    assert own <= peak.most <= 1.4 * own


@pytest.mark.parametrize(
    ("name", "kinds"), [("llama", None), ("gemma3_sliding", ["sliding_attention", "full_attention"])]
)
def test_all_layers_keep_one_mask_of_each_kind_for_the_backward_pass(name, kinds):
    model, kept = tiny_model(name, num_hidden_layers=4, layer_types=kinds and kinds * 2), set()
    attach_forest_forward(model, TRAINED_VOCABULARY)
    batch = ForestCollator((96, 97), 0)(made_up_examples(2))
    length = batch.rows.input_ids.shape[1]

    def keep(tensor):
        if tensor.shape[-2:] == (length, length):
            kept.add(tensor.untyped_storage().data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = model(batch=batch)
    assert len(kept) == len(kinds or [""]) and output.lm_loss_sum.requires_grad
