"""What a run of ``stepjepa train`` leaves, repeats and refuses; bad input is in test_errors.py."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from stepjepa.training.config import JEPAConfig
from stepjepa.training.trainer import JEPATrainer
from support.rows import step_rows, write
from support.runs import one_line, printed

ROWS = step_rows(24)


@pytest.fixture
def train(tmp_path, capfd):
    """Runs the command for two steps; what it prints."""
    data = write(tmp_path / "rows.jsonl", ROWS)

    def run(*flags, status=0, output="out"):
        given = {"--train_file": data, "--model_name": "tiny", "--max_steps": "2", "--batch_size": "4"}
        argv = ["train", "--disable_tqdm", "true", "--output_dir", str(tmp_path / output), *flags]
        if "--config" not in flags:
            argv += [word for name, value in given.items() if name not in flags for word in (name, value)]
        return printed(capfd, argv, status).strip()

    return run


def test_resolved_yaml_repeats_the_run_and_clears_nothing(train, tmp_path):
    flags = ["--step_jepa", "--multi_horizon", "1", "2", "--predictor_head", "linear", "--overwrite_output_dir"]
    train(*flags)
    config = str(tmp_path / "out" / "resolved.yaml")
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert "not empty" in train("--config", config, status=2)
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before
    said = train("--config", config, output="again")
    assert not [line for line in said.splitlines() if line.startswith("note")], said
    for name in ("model.safetensors", "predictors.safetensors"):
        first, again = (load_file(tmp_path / folder / name) for folder in ("out", "again"))
        assert all(torch.equal(first[key], again[key]) for key in first)


def test_what_stands_in_the_folder_is_safe(train, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    message = one_line(train(status=2))
    assert "not empty" in message and "--overwrite_output_dir" in message and "--resume_from_checkpoint" in message
    train("--step_jepa", "--save_steps", "1", "--overwrite_output_dir")
    before = (out / "model.safetensors").read_bytes()
    for flags, words in (  # everything is checked before anything is cleared
        (["--overwrite_output_dir", "--step_splitter", "numbered"], "no example has a pair"),
        (["--overwrite_output_dir", "--model_name", str(out)], "is inside the folder to overwrite"),
        (["--resume_from_checkpoint", "true", "--system_prompt", "Be brief."], "system_prompt=None, not Be brief."),
    ):
        assert words in train("--step_jepa", *flags, status=2)
        assert (out / "model.safetensors").read_bytes() == before and (out / "checkpoint-1").is_dir()
    (out / "predictors.safetensors").write_bytes(b"")  # of a run with them
    train("--step_jepa", "--overwrite_output_dir", "--save_strategy", "no", "--lbd", "0")
    assert (out / "notes.txt").read_text() == "mine" and (out / "model.safetensors").is_file()
    assert not [name for name in ("checkpoint-1", "predictors.safetensors") if (out / name).exists()]


def test_targets_from_another_column(train, tmp_path):
    """Rows without a text there train as plain rows, and are counted."""
    data = tmp_path / "plans.jsonl"
    plans = ["Add.", "Count them.", None, " ", 7, "\ud83d"]
    rows = [{**row, "plan": plan} for row, plan in zip(ROWS, plans, strict=False)]
    write(data, [*rows, *ROWS[6:8]])
    flags = ["--train_file", str(data), "--jepa_target_column", "plan", "--readout", "mean"]
    text = train(*flags, output="out0")
    assert "2 pairs" in text and "readout mean, jepa_target_column plan" in text
    without = "6 without a pair (plain language modelling): no text in the column of the target views"
    assert f"{without} (first: {data} line 3: column 'plan' is null)" in text
    streamed = ["--streaming", "--shuffle_buffer", "8", "--views", "standalone"]
    assert "views standalone" in train(*flags, *streamed, output="stream")
    config = JEPAConfig(str(tmp_path / "python"), max_steps=1, jepa_target_column="plan", disable_tqdm=True)
    others = [{**row, "plan": "Another one."} for row in rows[:2]]
    reports = [JEPATrainer("tiny", config, given).data_reports["train"] for given in (rows[:2], others)]
    assert reports[0].pairs == 2 and reports[0].fingerprint != reports[1].fingerprint


def test_options_without_effect_are_named(train):
    unread = "--readout mean --split_ratio 0.3 --lora_rank 4 --eval_samples 7"
    lines = train("--objective", "semantic_tube", "--lbd", "0", *unread.split()).splitlines()
    assert {line.removeprefix("note   ") for line in lines if line.startswith("note")} == {
        "--lbd 0: no pairs are made, so the run trains exactly like objective regular",
        "--readout has no effect with objective semantic_tube",
        "--split_ratio has no effect with objective semantic_tube",
        "--lora_rank has no effect without --lora",
        "--eval_samples has no effect without --eval_metrics",
    }


REAL = {
    "nl_rx_synth_train.jsonl": "--objective llm_jepa --predictors 2 --lbd 1.0",
    "gsm8k_train.jsonl": "--step_splitter lines --step_jepa --step_pairs all --predictors 2 --lbd 0.1 --lora",
}


@pytest.mark.long
@pytest.mark.parametrize("name", REAL)
def test_a_real_file_gives_a_model_that_loads_and_generates(name, train, tmp_path, shared_dir):
    file, out = shared_dir / "data" / name, tmp_path / "out"
    if not file.is_file():
        pytest.skip(f"no {file}")
    train("--train_file", str(file), "--model_name", "mini", *REAL[name].split())
    report = json.loads((out / "data_report.json").read_text())["train"]
    assert report["rows_kept"] == report["rows_read"] > 7000 and report["pairs"] >= report["rows_kept"]
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    assert model.config.vocab_size == len(tokenizer)
    chat = [{"role": "user", "content": "lines with a vowel"}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")
    assert model.generate(**prompt, max_new_tokens=4).shape[1] > prompt["input_ids"].shape[1]
