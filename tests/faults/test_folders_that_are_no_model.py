"""What is given as a model and is none gets a line of its own, in training and in evaluation."""

from __future__ import annotations

import pytest
from transformers import AutoModelForSeq2SeqLM, BartConfig, T5Config

from stepjepa.api import evaluate, train
from stepjepa.errors import ConfigError
from support.models import tiny_model
from support.rows import step_rows, write
from support.tokenizers import byte_bpe_tokenizer

SIZES = {"d_model": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
ENCODER_DECODERS = {
    "t5": T5Config(d_kv=8, d_ff=32, num_layers=1, num_heads=2, **SIZES),
    "bart": BartConfig(
        encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2, **SIZES
    ),
}


def folder_of(kind, folder):
    tokenizer = byte_bpe_tokenizer("chatml")
    if kind in ENCODER_DECODERS:
        config = ENCODER_DECODERS[kind]
        config.vocab_size = len(tokenizer)
        AutoModelForSeq2SeqLM.from_config(config).save_pretrained(folder)
    elif kind == "no tokenizer":
        tiny_model("llama", vocab_size=len(tokenizer)).save_pretrained(folder)
    elif kind == "no weights":
        tiny_model("llama", vocab_size=len(tokenizer)).config.save_pretrained(folder)
    if kind not in ("no tokenizer", "two gguf"):
        tokenizer.save_pretrained(folder)
    folder.mkdir(exist_ok=True)
    if kind == "two gguf":
        for name in ("model.Q4_1.gguf", "model.Q8_0.gguf"):
            (folder / name).write_bytes(b"GGUF")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("two gguf", "holds several models (model.Q4_1.gguf, model.Q8_0.gguf); give the path of one file"),
        ("no tokenizer", "the folder holds no tokenizer (tokenizer.json, tokenizer_config.json)"),
        ("no weights", "the folder holds no weights (model.safetensors)"),
        ("t5", "is an encoder-decoder; give a causal language model"),
        ("bart", "is an encoder-decoder; give a causal language model"),
    ],
)
def test_each_has_its_own_line(kind, message, tmp_path):
    folder_of(kind, tmp_path / "m")
    data, model = str(write(tmp_path / "rows.jsonl", step_rows(8))), str(tmp_path / "m")
    calls = [
        lambda: train(model_name=model, train_file=[data], output_dir=str(tmp_path / "run"), max_steps=1),
        lambda: evaluate(model_name=model, test_file=data, metric=["exact"]),
    ]
    for call in calls:
        with pytest.raises(ConfigError) as error:
            call()
        assert str(error.value).startswith(f"--model_name {model}: {message}") and "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()
