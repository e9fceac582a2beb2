"""Faults: predictor rows were in the vocabulary: checkpoints and adapters held it resized, and final models no rows."""

import copy

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from stepjepa.modeling.lora import lora_config
from stepjepa.training.sampling import FILLER, Draw
from support import training
from support.models import tiny_model
from support.rows import step_rows
from support.training import SAVED, batch_of

IDS = torch.tensor([[7, 8, 9, 10]])


def trainer_for(folder, tokenizer, name="llama", peft=None, model=None, **options):
    options = {"objective": "step_jepa", "predictors": 2, **SAVED, **options}
    model = model or tiny_model(name, "eager" if name == "gemma2" else "sdpa", vocab_size=len(tokenizer))
    return training.trainer_for(folder, tokenizer, step_rows(12), peft=peft, model=model, **options)


def test_a_checkpoint_has_the_vocabulary_as_it_came(tmp_path, tokenizer):
    trainer, checkpoint = trainer_for(tmp_path, tokenizer), tmp_path / "out" / "checkpoint-4"
    trainer.train()
    model, loading = AutoModelForCausalLM.from_pretrained(checkpoint, output_loading_info=True)
    assert not any(loading[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert model.config.vocab_size == model.get_input_embeddings().weight.shape[0] == len(tokenizer)
    assert torch.equal(model.eval()(IDS).logits, trainer.model.eval()(IDS).logits)
    assert AutoTokenizer.from_pretrained(checkpoint).get_vocab() == tokenizer.get_vocab()
    assert load_file(checkpoint / "predictors.safetensors")["predictors.weight"].shape == (2, 32)


def grown(model, rows):
    """A copy of a trained model whose vocabulary ends with the predictor rows, as an independent reference."""
    model = copy.deepcopy(model)
    size = model.get_input_embeddings().weight.shape[0]
    del model.jepa, model.forward
    model.resize_token_embeddings(size + len(rows), mean_resizing=False)
    with torch.no_grad():
        model.get_input_embeddings().weight[size:] = rows
    return model


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "gemma3_sliding"])
@pytest.mark.parametrize("forward", ["auto", "two_pass"])
def test_the_rows_are_embedded_as_the_vocabulary_s_are(tmp_path, tokenizer, name, forward):
    """Sources are the states of a model that has the rows in its vocabulary (which Gemma scales by the root of D)."""
    trainer = trainer_for(tmp_path, tokenizer, name, forward=forward)
    trainer.model.eval()
    with torch.no_grad():
        trainer.model.jepa.predictors.weight += 0.1
        found = trainer.model(batch=batch_of(trainer)).source_states
        reference = grown(trainer.model, trainer.model.jepa.predictors.weight)
        expected, ids = [], list(range(len(tokenizer), len(tokenizer) + 2))
        for row in range(len(trainer.train_dataset)):
            example = trainer.train_dataset[Draw(0, row)]
            for pair in example.pairs:
                source = [*example.trunk[: example.sees(pair.source) + 1].tolist(), *ids]
                states = getattr(reference, reference.base_model_prefix)(torch.tensor([source])).last_hidden_state
                expected.append(states[0, -1])
    assert len(expected) > 4
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("forward", ["packed", "two_pass", "inline"])
@pytest.mark.parametrize("peft", [False, True], ids=["full", "lora"])
def test_a_batch_without_a_pair_has_a_gradient_for_the_rows(tmp_path, tokenizer, forward, peft):
    """DDP waits for the gradient of every parameter, in every batch."""
    adapter = lora_config(2) if peft else None
    trainer = trainer_for(tmp_path, tokenizer, peft=adapter, forward=forward, predictor_head="mlp")
    filler = trainer.train_dataset[Draw(0, FILLER)]
    chat = trainer.train_dataset[Draw(0, 0)]._replace(pairs=())
    for examples in ([filler], [chat, filler]):
        trainer.model.zero_grad(set_to_none=True)
        trainer.compute_loss(trainer.model, trainer.data_collator(examples)).backward()
        extras = [p for name, p in trainer.model.named_parameters() if "jepa." in name]
        assert len(extras) == 5 and all(p.grad is not None and not p.grad.any() for p in extras)
