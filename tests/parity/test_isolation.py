"""Nothing leaks: a changed token changes nothing that cannot see it, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from stepjepa.forest.collate import ForestCollator
from stepjepa.forest.visibility import dense_mask
from stepjepa.modeling.forward import attach_forest_forward, run_backbone
from stepjepa.modeling.masks import SEGMENTS, attention_masks, use_attention
from support.models import TRAINED_VOCABULARY, made_up_examples, tiny_model


def states(model, batch):
    mask = attention_masks(model, batch)
    with torch.no_grad():
        return run_backbone(model, batch.input_ids, mask, batch.position_ids)[0].flatten(0, 1)


def reaches(batch):
    """(T, T) whether a change at k can reach q through any number of layers, row 0."""
    seen = dense_mask(batch)[0, 0].float()
    for _ in range(8):
        seen = ((seen @ seen) > 0).float()
    return seen > 0


CASES = [(name, "sdpa") for name in ("llama", "mistral_sliding", "gemma3_sliding")]
CASES += [("llama", "eager"), ("gpt2", "eager"), ("llama", "segments"), ("gemma3_sliding", "segments")]


@pytest.mark.parametrize(("name", "attention"), CASES)
def test_changing_a_token_changes_only_what_sees_it(name, attention):
    model = tiny_model(name, "sdpa" if attention == "segments" else attention)
    attach_forest_forward(model, TRAINED_VOCABULARY)
    collator = ForestCollator((96, 97), 0, one_row=attention == "segments")
    if attention == "segments":
        use_attention(model, SEGMENTS)
    batch = collator(made_up_examples(2)).rows
    assert batch.input_ids.shape[0] == 1
    before = states(model, batch)
    reached = reaches(batch)
    width = batch.input_ids.shape[1]
    names = (batch.segment + 100 * batch.example)[0][batch.filled[0]]
    lengths = names.unique_consecutive(return_counts=True)[1]
    assert len(lengths) == 4 + 4 + 4  # trunks, branches, targets
    for token in (lengths.cumsum(0) - (lengths + 1) // 2).tolist():  # the one in the middle of each
        ids = batch.input_ids.clone()
        ids[0, token] = (ids[0, token] + 11) % TRAINED_VOCABULARY
        after = states(model, replace(batch, input_ids=ids))
        same = (after == before).all(dim=-1)
        blind = ~reached[:, token]
        assert blind.sum() > width // 3
        assert same[blind].all(), f"token {token} reached a position that cannot see it"
        assert not same[token]
