"""Which adapters are trained, what they train along, and that their exports compute what the trained model computed."""

from __future__ import annotations

import copy
import json

import pytest
import torch
import transformers
from packaging.version import Version
from peft import AutoPeftModelForCausalLM, LoraConfig, PeftModel, PrefixTuningConfig
from peft import get_peft_model as wrapped
from transformers import AutoModelForCausalLM

from stepjepa import export
from stepjepa.api import train
from stepjepa.errors import ConfigError
from stepjepa.modeling.lora import is_untrained, token_rows
from stepjepa.training.options import RunOptions
from stepjepa.training.run import rate_line
from support.models import tiny_model
from support.rows import step_rows, write
from support.tokenizers import byte_bpe_tokenizer, fresh
from support.training import STEPS, trainer_for

CAUSAL = {"task_type": "CAUSAL_LM"}
LINEAR = {**CAUSAL, "r": 4, "lora_alpha": 32, "target_modules": "all-linear"}


@pytest.fixture(scope="module")
def chatml():
    return fresh(byte_bpe_tokenizer("chatml"))


def model_for(tokenizer, folder, tied=False):
    """A model that was saved and loaded, so that an adapter knows its base."""
    tiny_model("llama", vocab_size=len(tokenizer), tie_word_embeddings=tied).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder)


def kinds(tokenizer):
    ids = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|im_start|>"])
    return {
        "dora-untied": (False, {"use_dora": True}),
        "rslora": (False, {"use_rslora": True}),
        "tokens-untied": (False, {"trainable_token_indices": {"embed_tokens": ids, "lm_head": ids}}),
        "dora-tokens": (True, {"use_dora": True, "trainable_token_indices": ids}),
    }


LONG = [pytest.param(kind, marks=pytest.mark.long) for kind in ("dora-untied", "rslora")]


@pytest.mark.parametrize("kind", ["tokens-untied", "dora-tokens", *LONG])
def test_every_kind_of_lora_is_exported_as_it_was_trained(kind, tmp_path, chatml):
    tied, more = kinds(chatml)[kind]
    base = model_for(chatml, tmp_path / "base", tied)
    ids = torch.randint(0, len(chatml), (2, 9), generator=torch.Generator().manual_seed(0))
    before = base(ids).logits
    peft = LoraConfig(**LINEAR, **more)
    trainer = trainer_for(tmp_path, chatml, step_rows(8), model=base, peft=peft, predictors=1, max_steps=3, **STEPS)
    trainer.train()
    trained = trainer.model.eval()(ids).logits
    assert (trained - before).abs().max() > 0.01
    assert torch.equal(base(ids).logits, before), "the base is as it was"
    for merge in (False, True):
        trainer.args.merge_lora = merge
        trainer.save_model(str(tmp_path / f"{merge}"))
        # Before version 5.18 transformers leaves trained token rows out when it loads an adapter; PEFT reads them.
        reads_tokens = Version(transformers.__version__) >= Version("5.18")
        by_peft = "tokens" in kind and not merge and not reads_tokens
        loader = AutoPeftModelForCausalLM if by_peft else AutoModelForCausalLM
        loaded = loader.from_pretrained(tmp_path / f"{merge}")
        torch.testing.assert_close(loaded(ids).logits, trained, atol=2e-5, rtol=1e-4)
    export(tmp_path / "False", tmp_path / "again", merge_lora=True)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again")
    torch.testing.assert_close(again(ids).logits, trained, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "peft",
    [
        PrefixTuningConfig(num_virtual_tokens=2, **CAUSAL),
        LoraConfig(**LINEAR, modules_to_save=["lm_head"]),
        LoraConfig(**LINEAR, init_lora_weights="pissa"),
    ],
    ids=["prefix", "modules_to_save", "pissa"],
)
def test_what_is_not_exported_is_refused_before_training(peft, tmp_path, tokenizer):
    model = tiny_model("llama", vocab_size=len(tokenizer))
    around = wrapped(copy.deepcopy(model), copy.deepcopy(peft))
    for given in ({"model": model, "peft": peft}, {"model": around}):
        with pytest.raises(ConfigError, match="only LoRA can be trained|cannot be exported: ") as error:
            trainer_for(tmp_path, tokenizer, step_rows(8), **given)
        assert "\n" not in str(error.value)


def test_a_frozen_adapter_is_refused(tmp_path, tokenizer):
    base = model_for(tokenizer, tmp_path / "base")
    wrapped(copy.deepcopy(base), LoraConfig(**LINEAR)).save_pretrained(tmp_path / "adapter")
    frozen = PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "adapter")
    by_transformers = AutoModelForCausalLM.from_pretrained(tmp_path / "adapter")
    for model in (frozen, by_transformers):
        with pytest.raises(ConfigError, match="is_trainable=True"):
            trainer_for(tmp_path, tokenizer, step_rows(8), model=model, predictors=1, **STEPS)
    trainable = PeftModel.from_pretrained(base, tmp_path / "adapter", is_trainable=True)
    trainer_for(tmp_path, tokenizer, step_rows(8), model=trainable).train()
    with pytest.raises(ConfigError, match="every weight of the model is frozen"):
        trainer_for(tmp_path, tokenizer, step_rows(8), model=base.requires_grad_(False))


# Rows that pretraining has left alone


@pytest.mark.parametrize(
    ("kind", "part"), [("zero", "model.embed_tokens"), ("equal", "lm_head"), ("mean", "model.embed_tokens")]
)
def test_an_untrained_end_of_turn_is_a_warning(kind, part, tmp_path, chatml, caplog):
    end, start = chatml.convert_tokens_to_ids(["<|im_end|>", "<|im_start|>"])
    model = tiny_model("llama", vocab_size=len(chatml))
    assert not is_untrained(model, end)
    weight = model.get_submodule(part).weight
    untrained = {"zero": weight[end] * 1e-4, "equal": weight[end + 9] + 1e-5, "mean": weight.mean(0)}
    with torch.no_grad():
        weight[end] = untrained[kind]
    assert [is_untrained(model, token) for token in (end, start, end + 3)] == [True, False, False]
    rows = token_rows(model, chatml, ["<|im_end|>"])
    assert list(rows) == ["model.embed_tokens", "lm_head"]
    # All weights, or these rows, are trained.
    for peft in (None, LoraConfig(**LINEAR, trainable_token_indices=rows)):
        trainer_for(tmp_path, chatml, step_rows(8), model=model, peft=peft, **STEPS)
    assert "never trained" not in caplog.text
    trainer_for(tmp_path, chatml, step_rows(8), model=model, peft=LoraConfig(**LINEAR), **STEPS)
    (line,) = [one.getMessage() for one in caplog.records if "never trained" in one.getMessage()]
    assert f"--train_tokens '<|im_end|>' (in Python LoraConfig(trainable_token_indices={rows}))" in line


def test_train_tokens(tmp_path, chatml):
    """From the command's options; the row is in the adapter."""
    model_for(chatml, tmp_path / "base", tied=True)
    data = write(tmp_path / "rows.jsonl", step_rows(8))
    options = {"model_name": str(tmp_path / "base"), "train_file": [str(data)], "lora": True, "max_steps": 1}
    train(**options, output_dir=str(tmp_path / "run"), train_tokens=["<|im_end|>"])
    config = json.loads((tmp_path / "run" / "adapter_config.json").read_text())
    assert config["trainable_token_indices"] == {"model.embed_tokens": [chatml.convert_tokens_to_ids("<|im_end|>")]}
    assert json.loads((tmp_path / "run" / "run.json").read_text())["settings"]["learning_rate"] == 2e-4
    with pytest.raises(ConfigError, match=r"no token '<\|im_ed\|>'; did you mean '<\|im_end\|>'"):
        train(**options, output_dir=str(tmp_path / "other"), train_tokens=["<|im_ed|>"])


# The learning rate


def test_the_learning_rate_of_lora(tmp_path, tokenizer):
    base = model_for(tokenizer, tmp_path / "base")
    adapted = wrapped(copy.deepcopy(base), LoraConfig(**LINEAR))
    for model, peft, rate in ((base, LoraConfig(**LINEAR), 2e-4), (adapted, None, 2e-4), (base, None, 2e-5)):
        trainer = trainer_for(tmp_path, tokenizer, step_rows(8), model=model, peft=peft, learning_rate=None)
        assert trainer.args.learning_rate == rate
        line = rate_line(trainer.args, RunOptions(model_name="m"))
        assert line == ("learning rate 2e-05" if rate == 2e-5 else "learning rate 0.0002 (the default is 2e-05)")
