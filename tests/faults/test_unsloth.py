"""A model whose classes have Unsloth's kind of forward: numbers are exact, or the model is refused in one line.

What Unsloth's forward of `LlamaModel` (unsloth/models/llama.py) does differently: in training mode it drops the mask for a
causal one; rows are cut to `max_seq_length`; and in Gemma the embeddings of a frozen matrix are cut off from the graph.
"""

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaForCausalLM, LlamaModel

from stepjepa.errors import ConfigError
from stepjepa.modeling.lora import lora_config
from support.models import tiny_model
from support.rows import step_rows
from support.training import batch_of, logs_of, trainer_for

PAIRS = {"objective": "step_jepa", "predictors": 2}


@pytest.fixture
def patch(monkeypatch):
    """Replaces the forwards of Llama's classes, as loading a model with Unsloth does."""
    own, own_head = LlamaModel.forward, LlamaForCausalLM.forward

    def patched(cuts_off=False):
        def fast_forward(
            self, input_ids, causal_mask=None, attention_mask=None, position_ids=None, inputs_embeds=None, **kwargs
        ):
            input_ids = input_ids[:, : self.max_seq_length]
            positions = None if position_ids is None else position_ids[:, : self.max_seq_length]
            if self.training or attention_mask is None:
                attention_mask = torch.ones_like(input_ids)
            embeddings = self.embed_tokens(input_ids)
            if cuts_off and not self.embed_tokens.weight.requires_grad:
                embeddings = embeddings.detach().requires_grad_()
            rest = {"inputs_embeds": embeddings, "attention_mask": attention_mask, "position_ids": positions}
            return own(self, **rest, **kwargs)

        def fast_head(self, input_ids=None, causal_mask=None, labels=None, logits_to_keep=0, **kwargs):
            return own_head(self, input_ids=input_ids, labels=labels, logits_to_keep=logits_to_keep, **kwargs)

        monkeypatch.setattr(LlamaModel, "forward", fast_forward)
        monkeypatch.setattr(LlamaForCausalLM, "forward", fast_head)

    return patched


def loaded(tokenizer, max_seq_length=2048):
    model = tiny_model("llama", vocab_size=len(tokenizer))
    for module in model.modules():
        module.max_seq_length = max_seq_length
    return model


@pytest.mark.parametrize("lora", [False, True])
def test_it_is_trained_in_two_passes_with_the_numbers_of_an_unpatched_model(lora, patch, tmp_path, tokenizer, caplog):
    def run(**options):
        peft = lora_config(4, dropout=0.0) if lora else None
        trainer = trainer_for(tmp_path, tokenizer, peft=peft, model=loaded(tokenizer), **PAIRS, **options)
        trainer.train()
        return trainer, [{name: value for name, value in entry.items() if "loss" in name} for entry in logs_of(trainer)]

    _, expected = run(forward="two_pass")
    patch()
    trainer, found = run()
    assert trainer.setup.forward == "two_pass"
    assert "LlamaForCausalLM: forward two_pass, because in training mode its attention does not" in caplog.text
    assert [entry.keys() for entry in found] == [entry.keys() for entry in expected] and len(found) == 2
    for one, other in zip(found, expected, strict=True):
        assert list(one.values()) == pytest.approx(list(other.values()), rel=1e-4)
    rows = dict(trainer.model.named_parameters())
    (moved,) = [weight for name, weight in rows.items() if name.endswith("jepa.predictors.weight")]
    assert moved.grad is None and not torch.equal(moved, torch.zeros_like(moved))


def test_predictors_that_would_not_learn_are_refused(patch, tmp_path, tokenizer):
    patch(cuts_off=True)

    def trainer(**options):
        return trainer_for(tmp_path, tokenizer, peft=lora_config(4), model=loaded(tokenizer), **{**PAIRS, **options})

    with pytest.raises(ConfigError, match="detaches its embeddings, .*; use predictors=0") as refused:
        trainer()
    assert "\n" not in str(refused.value)
    assert trainer(predictors=0).train().global_step == 2


def test_rows_keep_to_the_length_that_the_model_was_loaded_with(patch, tmp_path, tokenizer):
    patch()
    trainer = trainer_for(tmp_path, tokenizer, step_rows(8), model=loaded(tokenizer, 40), **PAIRS)
    assert max(rows.input_ids.shape[1] for rows in batch_of(trainer).every_rows) <= 40
    assert trainer.data_reports["train"].token_length["max"] == 40
    assert trainer.train().global_step == 2
