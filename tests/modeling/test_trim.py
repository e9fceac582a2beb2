"""The last MLP runs on what is read, and nothing that is read changes."""

from __future__ import annotations

import pytest
import torch

from stepjepa.forest.collate import ForestCollator
from stepjepa.modeling import forward as forward_module
from stepjepa.modeling.forward import attach_forest_forward, last_mlp
from support.models import ARCHITECTURES, TRAINED_VOCABULARY, made_up_examples, tiny_model


def outputs_and_gradients(model, batch):
    model.zero_grad()
    output = model(batch=batch)
    (output.lm_loss_sum + output.source_states.sum() + (output.target_states**2).sum()).backward()
    return output, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("name", "predictors"), [("llama", (96, 97)), *((name, ()) for name in ARCHITECTURES)])
def test_nothing_that_is_read_changes(name, predictors, monkeypatch):
    """With K = 0 a state may be read by both losses: its gradient must count once each, not twice."""
    model = tiny_model(name, ARCHITECTURES[name][2][0])
    attach_forest_forward(model, TRAINED_VOCABULARY)
    batch = ForestCollator(predictors, 0)(made_up_examples(len(predictors)))
    own = model.get_submodule(model.base_model_prefix)
    seen = []
    last_mlp(own).register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[:2].numel()))
    trimmed_output, trimmed_gradients = outputs_and_gradients(model, batch)
    assert seen == [batch.rows.input_ids.numel()]  # the hook lies before the cut
    assert batch.rows.read_positions.numel() < batch.rows.input_ids.numel() * 0.8
    monkeypatch.setattr(forward_module, "trimmed", lambda backbone, read: forward_module.nullcontext())
    whole_output, whole_gradients = outputs_and_gradients(model, batch)
    for key in ("lm_loss_sum", "source_states", "target_states"):
        torch.testing.assert_close(getattr(trimmed_output, key), getattr(whole_output, key), atol=1e-5, rtol=1e-5)
    for key, gradient in whole_gradients.items():
        assert (trimmed_gradients[key] - gradient).norm() <= 1e-4 * gradient.norm() + 1e-6, key


def test_it_computes_fewer_rows_but_not_under_gradient_checkpointing():
    model = tiny_model("llama")
    attach_forest_forward(model, TRAINED_VOCABULARY)
    batch = ForestCollator((96, 97), 0)(made_up_examples(2))
    rows = []
    for layer in model.model.layers:
        layer.mlp.down_proj.register_forward_hook(lambda module, args, output: rows.append(args[0].shape[:2].numel()))
    model(batch=batch)
    assert rows == [batch.rows.input_ids.numel(), batch.rows.read_positions.numel()]
    assert "forward" not in vars(model.model.layers[-1].mlp)
    assert last_mlp(model.model) is model.model.layers[-1].mlp
    model.gradient_checkpointing_enable()
    assert last_mlp(model.model) is None
