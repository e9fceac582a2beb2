"""The final model loads plainly and computes what the trained one computed."""

from __future__ import annotations

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from stepjepa import export
from stepjepa.data.tokens import Prompter, kept_predictors
from stepjepa.errors import ConfigError
from stepjepa.modeling.export import export_model
from stepjepa.modeling.extras import PredictorRows, add_extras, known_predictors, predictor_names, with_predictors
from stepjepa.modeling.lora import add_lora, lora_config
from stepjepa.modeling.parts import vocabulary_size
from support.models import tiny_model


def base_model(tokenizer, tied, folder):
    tiny_model("llama", vocab_size=len(tokenizer), tie_word_embeddings=tied).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder)


def states_of(model, ids):
    with torch.no_grad(), with_predictors(model, torch.tensor([ids])) as known:
        return model.model(known).last_hidden_state


@pytest.mark.parametrize(("tied", "padding", "groups"), [(True, 13, (1,)), (False, 0, (1,)), (True, 0, (3, 2))])
def test_keep_predictors(tmp_path, tokenizer, tied, padding, groups):
    """They get the tokenizer's next ids, also where the vocabulary has unused rows there (Qwen)."""
    model = base_model(tokenizer, tied, tmp_path / "base")
    model.resize_token_embeddings(len(tokenizer) + padding, mean_resizing=False)
    rows, names = PredictorRows.drawn(model, 2, seed=0), predictor_names(2 // len(groups), groups)
    assert 0.5 < rows.weight.detach().std() / model.get_input_embeddings().weight.detach().std() < 2
    add_extras(model, rows, groups=groups)
    out = tmp_path / "out"
    export_model(model, tokenizer, out, merge_lora=True, keep_predictors=True)
    loaded, words = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    assert loaded.config.vocab_size == len(tokenizer) + max(padding, 2)
    ids = words.convert_tokens_to_ids(names)
    assert ids == [len(tokenizer), len(tokenizer) + 1]
    assert names[1] == ("<|predictor_2_1|>" if len(groups) > 1 else "<|predictor_2|>")
    assert words(names[1], add_special_tokens=False)["input_ids"] == [ids[1]]
    assert known_predictors(words, len(words), names) == ids == list(kept_predictors(words).values())
    assert {*ids} <= {*Prompter(words).unwritable_ids(len(words))}  # no answer is made of them
    expected = states_of(model, [5, 6, *rows.ids])
    torch.testing.assert_close(loaded.model(torch.tensor([[5, 6, *ids]])).last_hidden_state, expected)
    if not tied:
        assert not loaded.lm_head.weight[ids].any()
    plain = list(range(len(tokenizer)))
    logits = loaded(torch.tensor([[5, 6]])).logits[..., plain]
    torch.testing.assert_close(logits, model(torch.tensor([[5, 6]])).logits[..., plain])


@pytest.mark.parametrize("tied", [True, False])
def test_known_predictors_get_their_trained_rows(tmp_path, tokenizer, tied):
    """A model that came with predictor tokens: same vocabulary, new rows, kept or not."""
    model = base_model(tokenizer, tied, tmp_path / "base")
    known = copy.deepcopy(tokenizer)
    known.add_tokens(predictor_names(2), special_tokens=True)
    model.resize_token_embeddings(len(known), mean_resizing=False)
    own = known.convert_tokens_to_ids(predictor_names(2))
    rows = PredictorRows.drawn(model, 2, 0, own)
    assert torch.equal(rows.weight, model.get_input_embeddings().weight[own])
    add_extras(model, rows)
    with torch.no_grad():
        rows.weight += 1.0
    for keep in (True, False):
        export_model(model, known, tmp_path / f"{keep}", merge_lora=True, keep_predictors=keep)
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / f"{keep}")
        assert vocabulary_size(loaded) == len(known)
        torch.testing.assert_close(loaded.get_input_embeddings().weight[own], rows.weight)
        if not tied:
            assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)


def test_predictors_in_an_adapter_are_refused(tmp_path, tokenizer):
    model = add_lora(base_model(tokenizer, True, tmp_path / "base"), lora_config(4))
    with pytest.raises(ConfigError, match="an adapter cannot change the vocabulary"):
        export_model(model, tokenizer, tmp_path, merge_lora=False, keep_predictors=True)


@pytest.mark.parametrize("kind", [{"lora_bias": True}, {"modules_to_save": ["lm_head"]}])
def test_an_adapter_from_elsewhere_that_cannot_be_merged_is_refused(kind, tmp_path, tokenizer):
    """A LoRA's biases and copies of modules would be left out of the merged weights."""
    base, config = base_model(tokenizer, False, tmp_path / "base"), LoraConfig(target_modules=["q_proj"], **kind)
    for part in (get_peft_model(base, config), tokenizer):
        part.save_pretrained(tmp_path / "adapter")
    with pytest.raises(ConfigError, match=f"LoRA with {next(iter(kind))} cannot be exported: .*; merge it with PEFT"):
        export(tmp_path / "adapter", tmp_path / "out", base_model=str(tmp_path / "base"), merge_lora=True)
    assert not (tmp_path / "out").exists()
