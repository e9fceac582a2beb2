"""A model trained here stops after its answer under plain transformers, whatever ends a turn in its chat template."""

from __future__ import annotations

import json

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig

from stepjepa import export
from stepjepa.modeling.lora import lora_config
from support.rows import step_rows
from support.tokenizers import byte_bpe_tokenizer, fresh
from support.training import trainer_for

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
ROWS = [{"question": f"Say {word}", "answer": word} for word in ("red", "blue", "green", "pink")]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A base model as published: its EOS is <|endoftext|>, and a ChatML template ends turns with <|im_end|>."""
    folder, tokenizer = tmp_path_factory.mktemp("base"), fresh(byte_bpe_tokenizer("chatml"))
    tokenizer.add_special_tokens({"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"})
    ends = dict.fromkeys(("eos_token_id", "pad_token_id"), tokenizer.eos_token_id)
    model = AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=len(tokenizer), **SIZES, **ends))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # A published config: sampling values without sampling, which transformers refuses to write once it is changed.
    config = {"eos_token_id": [tokenizer.eos_token_id], "temperature": 0.6, "top_p": 0.9}
    (folder / "generation_config.json").write_text(json.dumps(config))
    return folder


def trained(base, folder, **options):
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base)
    return trainer_for(folder, tokenizer, ROWS, model=model, objective="regular", **options), tokenizer


def ends_of(folder):
    return json.loads((folder / "generation_config.json").read_text())["eos_token_id"]


def test_it_stops_under_plain_generate(base, tmp_path):
    trainer, tokenizer = trained(base, tmp_path, max_steps=60, save_strategy="steps", save_steps=60)
    trainer.train()
    trainer.save_model()
    folder, eos, end = tmp_path / "out", tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|im_end|>")
    model, words = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    chat = [{"role": "user", "content": ROWS[1]["question"]}]
    inputs = words.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**inputs, max_new_tokens=20, do_sample=False)[0, inputs["input_ids"].shape[1] :].tolist()
    assert output[-1] == end and words.decode(output[:-1]) == "blue"
    assert sorted(ends_of(folder)) == sorted([eos, end])
    assert words.eos_token == "<|endoftext|>", "the tokenizer's EOS is left alone"
    assert json.loads((folder / "generation_config.json").read_text())["temperature"] == 0.6, "what was there stays"
    assert r"| end of an answer | \<\|im\_end\|\>" in (folder / "README.md").read_text()
    assert ends_of(folder / "checkpoint-60") == ends_of(folder)
    export(tmp_path / "out" / "checkpoint-60", tmp_path / "exported")
    assert ends_of(tmp_path / "exported") == ends_of(folder)


def test_an_adapter_folder_names_the_tokens(base, tmp_path):
    trainer, tokenizer = trained(base, tmp_path, max_steps=1, peft=lora_config(2))
    trainer.train()
    trainer.save_model()
    expected = {tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|im_end|>")}
    assert set(GenerationConfig.from_pretrained(tmp_path / "out").eos_token_id) == expected


def test_a_template_without_an_end_of_turn(base, tmp_path):
    """The EOS that training appends ends an answer."""
    trainer, tokenizer = trained(base, tmp_path, max_steps=1, plain=True)
    trainer.train()
    trainer.save_model()
    assert ends_of(tmp_path / "out") in (tokenizer.eos_token_id, [tokenizer.eos_token_id])


def test_a_model_that_names_its_end_is_as_it_was(tokenizer, tmp_path):
    trainer = trainer_for(tmp_path, tokenizer, step_rows(8), max_steps=1, objective="regular")
    trainer.train()
    trainer.save_model()
    ends = ends_of(tmp_path / "out")
    assert tokenizer.eos_token_id in ([ends] if isinstance(ends, int) else ends)
