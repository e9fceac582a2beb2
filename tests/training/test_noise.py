"""NEFTune's noise: scaled by each chat's own length, on the chats alone."""

from __future__ import annotations

import pytest
import torch

from stepjepa.modeling.forward import causal_lm
from support.rows import step_rows
from support.training import JEPA, METHODS, batch_of, trainer_for

FORMS = {name: METHODS[name] for name in ("step", "two_pass", "standalone")}
FORMS["inline"] = {"objective": "step_jepa", "predictors": 2, "forward": "inline"}
FORMS["target rows"] = {**JEPA, "target_grad": False}
ALPHA = 5.0


@pytest.mark.parametrize("form", FORMS)
def test_chats_are_moved_by_their_own_length_and_targets_are_not(form, tmp_path, tokenizer):
    rows = step_rows(6)
    rows[0]["messages"][-1]["content"] += "\n\nOne more step." * 5
    trainer = trainer_for(tmp_path, tokenizer, rows, neftune_noise_alpha=ALPHA, **FORMS[form])
    batch, inner = batch_of(trainer), causal_lm(trainer.model)
    assert trainer.neftune_noise_alpha is None
    seen, embedding = [], inner.get_input_embeddings()
    own = type(embedding).__call__

    def call(module, ids):
        output = own(module, ids)
        if module is embedding:
            clean = torch.nn.functional.embedding(ids, module.weight)
            seen.append((ids, (output - clean).detach()))
        return output

    trainer.model.train()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(embedding), "__call__", call)
        trainer.model(batch=batch, step=0)
    packed = batch.rows
    size = packed.input_ids.shape
    (moved,) = [change for ids, change in seen if ids.shape == size and (change != 0).float().mean() > 0.3]
    for ids, change in seen:
        if change is not moved:
            assert not change[ids < trainer.setup.vocabulary - 1].any(), "views of their own stay"
    if packed.segment is None:
        on_chat, groups = packed.filled, list(range(size[0]))
        chat_of = torch.arange(size[0])[:, None].expand(size)
    else:
        on_chat = packed.filled & (packed.segment == 0)
        on_chat &= packed.floor == 0 if packed.floor is not None else True
        chat_of, groups = packed.example, range(int(packed.example.max()) + 1)
    is_predictor = packed.input_ids >= trainer.setup.vocabulary
    assert not moved[~on_chat & ~is_predictor].any(), "branches, targets and padding stay"
    for number in groups:
        own_tokens = on_chat & (chat_of == number) & ~is_predictor
        length = int((on_chat & (chat_of == number)).sum())
        bound = ALPHA / (length * moved.shape[-1]) ** 0.5
        largest = float(moved[own_tokens].abs().max())
        assert 0.9 * bound < largest <= bound * 1.001
    trainer.model.eval()
    with torch.no_grad():
        first = trainer.model(batch=batch, step=0).lm_loss_sum
        assert torch.equal(first, trainer.model(batch=batch, step=0).lm_loss_sum), "none in an evaluation"
