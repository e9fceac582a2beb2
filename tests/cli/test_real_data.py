"""The method's two kinds of runs on real files: a few steps, and a model that loads and generates."""

from __future__ import annotations

import json

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from stepjepa.cli.main import main

RUNS = {
    "nl_rx_synth_train.jsonl": "--objective llm_jepa --predictors 2 --lbd 1.0",
    "gsm8k_train.jsonl": "--step_splitter lines --step_jepa --step_pairs all --predictors 2 --lbd 0.1 --lora",
}


@pytest.mark.long
@pytest.mark.parametrize("name", RUNS)
def test_a_real_file(name, tmp_path, shared_dir):
    file = shared_dir / "data" / name
    if not file.is_file():
        pytest.skip(f"no {file}")
    out = tmp_path / "run"
    flags = [*RUNS[name].split(), "--max_steps", "2", "--batch_size", "4", "--output_dir", str(out)]
    assert main(["train", "--train_file", str(file), "--model_name", "mini", *flags]) == 0
    report = json.loads((out / "data_report.json").read_text())["train"]
    assert report["rows_kept"] == report["rows_read"] > 7000
    assert report["pairs"] >= report["rows_kept"]
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    assert model.config.vocab_size == len(tokenizer)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "lines with a vowel"}], add_generation_prompt=True, return_tensors="pt"
    )
    assert model.generate(**prompt, max_new_tokens=4).shape[1] > prompt["input_ids"].shape[1]
