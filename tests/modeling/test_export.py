"""The final model loads plainly and computes what the trained one computed."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from stepjepa.errors import ConfigError
from stepjepa.modeling.export import export_model
from stepjepa.modeling.load import add_lora, load_model, load_tokenizer, lora_config
from stepjepa.modeling.predictors import add_predictors, predictor_names, vocabulary_size


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("tiny", ["one two three"] * 5)


def base_model(tokenizer, tied, folder):
    model = load_model("tiny", tokenizer, seed=1)
    if not tied:
        model.config.tie_word_embeddings = False
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(model.config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("merge", [True, False])
def test_lora(tmp_path, tokenizer, tied, merge):
    model = base_model(tokenizer, tied, tmp_path / "base")
    size = vocabulary_size(model)
    ids = torch.randint(0, size, (2, 9), generator=torch.Generator().manual_seed(0))
    before = model(ids).logits
    predictors = add_predictors(model, 2, seed=0)
    assert torch.equal(model(ids).logits[..., :size], before)
    model = add_lora(model, lora_config(4, dropout=0.0), predictors)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.3 * torch.randn_like(parameter)
    trained = model.eval()(ids).logits[..., :size]
    assert (trained - before).abs().max() > 0.1
    out = tmp_path / "out"
    export_model(model, tokenizer, out, vocabulary=size, predictor_ids=predictors, merge_lora=merge)
    loaded = AutoModelForCausalLM.from_pretrained(out)
    torch.testing.assert_close(loaded(ids).logits, trained, atol=1e-4, rtol=1e-4)
    assert (out / "adapter_model.safetensors").exists() is not merge
    assert AutoTokenizer.from_pretrained(out).get_vocab() == tokenizer.get_vocab()
    assert not (out / ".export").exists()


@pytest.mark.parametrize("tied", [True, False])
def test_keep_predictors(tmp_path, tokenizer, tied):
    model = base_model(tokenizer, tied, tmp_path / "base")
    size = vocabulary_size(model)
    predictors = add_predictors(model, 2, seed=0)
    expected = model(torch.tensor([predictors])).logits[..., :size]
    out = tmp_path / "out"
    export_model(
        model, tokenizer, out, vocabulary=size, predictor_ids=predictors, merge_lora=True, keep_predictors=True
    )
    loaded, words = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    ids = words.convert_tokens_to_ids(predictor_names(2))
    torch.testing.assert_close(loaded(torch.tensor([ids])).logits[..., :size], expected)
    assert words("<|predictor_2|>", add_special_tokens=False)["input_ids"] == [ids[1]]


def test_predictors_in_an_adapter_are_refused(tmp_path, tokenizer):
    model = base_model(tokenizer, True, tmp_path / "base")
    predictors = add_predictors(model, 1, seed=0)
    model = add_lora(model, lora_config(4), predictors)
    with pytest.raises(ConfigError, match="--merge_lora"):
        export_model(
            model, tokenizer, tmp_path, vocabulary=267, predictor_ids=predictors, merge_lora=False, keep_predictors=True
        )


def test_padded_vocabularies_are_not_shrunk(tmp_path, tokenizer):
    """More rows than tokens (Qwen): predictors go behind all of them, and the export has as many as before."""
    model = load_model("tiny", tokenizer, seed=1)
    model.resize_token_embeddings(len(tokenizer) + 13, mean_resizing=False)
    size = vocabulary_size(model)
    predictors = add_predictors(model, 3, seed=0)
    assert predictors == [size, size + 1, size + 2]
    export_model(model, tokenizer, tmp_path, vocabulary=size, predictor_ids=predictors, merge_lora=True)
    assert AutoModelForCausalLM.from_pretrained(tmp_path).config.vocab_size == len(tokenizer) + 13


def test_predictors_leave_the_global_random_state_alone(tokenizer):
    model = load_model("tiny", tokenizer, seed=1)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    first = add_predictors(model, 2, seed=0)
    assert torch.equal(torch.rand(3), expected)
    rows = model.get_input_embeddings().weight[first].detach()
    other = load_model("tiny", tokenizer, seed=1)
    add_predictors(other, 2, seed=0)
    assert torch.equal(other.get_input_embeddings().weight[first], rows)
    assert 0.5 < float(rows.std() / model.get_input_embeddings().weight[: first[0]].std()) < 2
