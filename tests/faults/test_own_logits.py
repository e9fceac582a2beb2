"""The LM loss is that of the model's own logits, whatever its head, windows and entry points; all families: tests/parity."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from stepjepa.data.types import Example
from stepjepa.errors import ConfigError
from stepjepa.evaluation.nll import answer_losses
from stepjepa.modeling.forward import attach_forest_forward
from stepjepa.modeling.load import load_model
from stepjepa.modeling.lora import lora_config
from stepjepa.modeling.parts import output_head
from stepjepa.modeling.trial import exactness
from stepjepa.training.options import JEPAOptions
from stepjepa.training.setup import make_collator, set_up_model
from support.families import EXAMPLES, VOCABULARY, examples_with, family_config, family_model, own_losses
from support.models import tiny_model

STEPS = {"objective": "step_jepa", "step_pairs": "all"}


def no_template():
    raise ValueError("no chat template")


NO_TOKENS = SimpleNamespace(
    get_added_vocab=dict,
    get_vocab=dict,
    eos_token_id=None,
    bos_token_id=None,
    pad_token_id=None,
    chat_template=None,
    apply_chat_template=no_template,
    get_chat_template=no_template,
)


def ready(model, count=0, examples=None):
    """The model as training has it, the setup and a batch of the examples."""
    options = JEPAOptions(predictors=count, **STEPS)
    model, setup = set_up_model(model, options, 0, "cpu")
    collator = make_collator(setup, options, 0, model.config.get_text_config()._attn_implementation, "cpu")
    return model, setup, collator(examples or examples_with(count))


def encoder():
    """BERT as it is: every token sees those that follow."""
    return type(family_model("bert"))(family_config("bert", is_decoder=False))


# Families whose logits are no plain product with the output embedding, or not the one that their configuration suggests.
@pytest.mark.parametrize("family", ["modernbert-decoder", "electra", "rembert", "xlstm"])
def test_the_loss_is_that_of_the_models_own_head_in_training_and_evaluation(family):
    model = family_model(family)
    expected = own_losses(model)
    assert [total for total, *_ in answer_losses(model, EXAMPLES)] == pytest.approx(expected, rel=1e-5)
    model, _, batch = ready(model)
    with torch.no_grad():
        assert float(model(batch=batch).lm_loss_sum) == pytest.approx(sum(expected), rel=1e-5)


def test_a_head_of_its_own_has_its_own_gradient_in_chunks_too(monkeypatch):
    model = family_model("modernbert-decoder")
    head = output_head(model, VOCABULARY)
    assert head.own == "model"
    states = torch.randn(7, 32, requires_grad=True)
    labels = torch.arange(10, 17)
    dense = [parameter for name, parameter in model.named_parameters() if not name.startswith("model.")]
    plain = F.cross_entropy(model.decoder(model.lm_head(states)), labels, reduction="sum")
    expected = torch.autograd.grad(plain, [states, *dense])
    for rows in (100, 3):
        monkeypatch.setattr("stepjepa.modeling.parts.chunk_rows", lambda vocabulary, rows=rows: rows)
        loss = head.loss_sum(model, states, labels)
        assert float(loss) == pytest.approx(float(plain), rel=1e-6)
        for one, other in zip(torch.autograd.grad(loss, [states, *dense]), expected, strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    assert float(head.loss_sum(model, states[:0], labels[:0])) == 0


def test_the_start_up_trial_of_a_saved_model_finds_its_own_logits(tmp_path):
    family_model("modernbert-decoder").save_pretrained(tmp_path)
    model = load_model(str(tmp_path), NO_TOKENS)
    expected = own_losses(model)
    attach_forest_forward(model, VOCABULARY)
    verdict = exactness(model, VOCABULARY, "eager")
    assert verdict.fault == "" and verdict.off < 1e-5
    model, _, batch = ready(model)
    with torch.no_grad():
        assert float(model(batch=batch).lm_loss_sum) == pytest.approx(sum(expected), rel=1e-5)


@pytest.mark.parametrize("family", ["llama", "gpt_neox", "olmo2"])
@pytest.mark.parametrize("window", [4, 20])
def test_a_window_in_the_configuration_that_the_class_ignores_is_ignored(family, window, caplog):
    model = family_model(family)
    model.config.sliding_window = window
    ids = np.random.default_rng(60).integers(3, 90, 60).astype(np.int32)
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(ids)[None].long()).logits[0]
    expected = F.cross_entropy(logits[19:-1], torch.from_numpy(ids[20:]).long(), reduction="sum")
    with caplog.at_level(logging.WARNING, "stepjepa"):
        model, setup, batch = ready(model, examples=[Example(ids, ((20, 60),))])
    assert setup.forward == "packed" and model.config.sliding_window == window
    assert [record.getMessage().count("sliding_window") for record in caplog.records] == [1]
    with torch.no_grad():
        assert float(model(batch=batch).lm_loss_sum) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("forward", ["auto", "packed", "two_pass"])
@pytest.mark.parametrize("objective", ["step_jepa", "regular"])
def test_a_model_that_sees_the_last_token_from_before_is_refused(forward, objective):
    """An encoder would be trained on labels that it sees."""
    options = JEPAOptions(objective=objective, predictors=0, forward=forward)
    with pytest.raises(ConfigError, match="sees the tokens that follow") as refused:
        set_up_model(encoder(), options, 0, "cpu")
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 300


def test_a_saved_model_that_sees_the_future_is_refused(tmp_path):
    encoder().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="sees the tokens that follow"):
        ready(load_model(str(tmp_path), NO_TOKENS))


def test_positions_that_the_model_counts_otherwise_are_refused():
    with pytest.raises(ConfigError, match="do not give its own logits"):
        ready(family_model("roberta"))


@pytest.mark.parametrize("family", ["gemma3", "mllama", "moss_transcribe_diarize"])
def test_every_trained_parameter_of_a_multimodal_class_gets_a_gradient(family):
    """DDP waits for the gradient of each trainable parameter; text gives a vision tower none."""
    model, _, batch = ready(family_model(family).train(), 2)
    output = model(batch=batch)
    (output.lm_loss_sum + output.source_states.sum() + output.target_states.sum()).backward()
    parameters = dict(model.named_parameters())
    trained = {name for name, one in parameters.items() if one.requires_grad}
    assert trained == {name for name, one in parameters.items() if one.grad is not None}
    assert not any("vision" in name or "audio_tower" in name for name in trained)
    assert sum("language_model" in name or ".layers." in name for name in trained) > 10


@pytest.mark.parametrize("family", ["gemma3", "phi4_multimodal"])
@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "qkv_proj"]])
def test_adapters_are_trained_where_text_goes(family, targets):
    adapter = lora_config(2, targets=targets)
    model, _ = set_up_model(family_model(family), JEPAOptions(predictors=0, **STEPS), 0, "cpu", adapter)
    adapted = [name for name, one in model.named_parameters() if "lora_A" in name and one.requires_grad]
    assert adapted and not any("vision" in name or "image" in name or "audio" in name for name in adapted)
    if targets == "all-linear":
        assert len([name for name, _ in model.named_parameters() if "lora_A" in name]) == len(adapted)


def test_a_mixture_of_experts_is_not_frozen():
    model, _, _ = ready(tiny_model("mixtral"))
    assert all(parameter.requires_grad for parameter in model.parameters())
