"""Faults: training changed what the caller had handed over, so that a second model or a second trainer failed."""

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM, TrainerCallback

from stepjepa.modeling.lora import lora_config
from stepjepa.training.config import JEPAConfig
from stepjepa.training.trainer import JEPATrainer
from support.models import tiny_model
from support.rows import step_rows
from support.training import logs_of, trainer_for

IDS = torch.tensor([[7, 8, 9, 10]])
STEPS = {"objective": "step_jepa", "predictors": 2, "predictor_head": "linear"}


@pytest.fixture
def model(tokenizer):
    return tiny_model("llama", vocab_size=len(tokenizer))


def train(model, tokenizer, folder, peft=None, callback=None, **options):
    options = {"lr_scheduler_type": "constant", **STEPS, **options}
    trainer = trainer_for(folder, tokenizer, step_rows(12), peft=peft, model=model, **options)
    if callback is not None:
        trainer.add_callback(callback)
    trainer.train()
    return trainer


def losses(trainer):
    return [entry["loss"] for entry in logs_of(trainer)]


def test_the_objects_of_the_caller_are_as_they_were(tmp_path, tokenizer, model):
    peft, own, settings = lora_config(4), copy.deepcopy(tokenizer), model.config
    options = {"plain": True, "step_splitter": "auto", "step_separator": "\n\n", "max_steps": 2, "learning_rate": 1e-2}
    args = JEPAConfig(output_dir=str(tmp_path), save_strategy="no", disable_tqdm=True, **options, **STEPS)

    def state():
        trained = [(name, one.requires_grad) for name, one in model.named_parameters() if "jepa" not in name]
        return copy.deepcopy((vars(settings), vars(peft), args.to_dict(), own.chat_template, own.get_vocab(), trained))

    before = state()
    JEPATrainer(model, args, step_rows(12), None, own, peft).train()
    JEPATrainer(model, args, step_rows(12), None, own).train()
    assert state() == before and settings._attn_implementation == "sdpa"


def test_one_model_in_two_trainers(tmp_path, tokenizer, model):
    """The second trains as a trainer of a model that is loaded from what the first has written."""
    train(model, tokenizer, tmp_path / "first", target_encoder="ema").save_model(str(tmp_path / "first"))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "first")
    second = {"objective": "llm_jepa", "predictors": 3}
    found, expected = (losses(train(one, tokenizer, tmp_path / "second", **second)) for one in (model, loaded))
    assert found == expected and len(found) == 2


def check_plain(model, folder, vocabulary):
    """It does what a plain model of the same weights does: forward, generate, save_pretrained."""
    training = model.training
    model.eval().save_pretrained(folder)
    plain, loading = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"] and not loading["mismatched_keys"]
    assert plain.config.vocab_size == vocabulary
    with torch.no_grad():
        batch = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS), "labels": IDS}
        found, expected = model(**batch), plain.eval()(**batch)
        assert found.logits.shape[-1] == vocabulary
        torch.testing.assert_close(found.logits, expected.logits)
        torch.testing.assert_close(found.loss, expected.loss)
        assert found.past_key_values is not None and model.config.use_cache == plain.config.use_cache is True
        given = {"max_new_tokens": 3, "do_sample": False}
        assert torch.equal(model.generate(IDS, **given), plain.generate(IDS, **given))
    model.train(training)


@pytest.mark.parametrize(
    "options", [{"forward": "two_pass", "target_encoder": "ema"}, {"gradient_checkpointing": True}]
)
def test_a_model_is_a_plain_one_at_any_time(tmp_path, tokenizer, model, options):
    class AtAnyTime(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **kwargs):
            check_plain(model, tmp_path / str(state.global_step), len(tokenizer))

    untouched = copy.deepcopy(model)
    trainer = train(model, tokenizer, tmp_path / "out", callback=AtAnyTime(), **options)
    assert (tmp_path / "1").is_dir() and (tmp_path / "2").is_dir() and trainer.model is model
    plain = train(untouched, tokenizer, tmp_path / "unwatched", **options)
    assert losses(plain) == losses(trainer), "looking at it changes nothing"


def test_a_copy_of_a_trained_model_answers_with_its_own_weights(tmp_path, tokenizer, model):
    train(model, tokenizer, tmp_path)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for weight in twin.parameters():
            weight.zero_()
    assert not twin(IDS).logits.any() and model(IDS).logits.any()
