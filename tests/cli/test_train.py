"""What a run of ``stepjepa train`` leaves, repeats and refuses; bad input is in test_errors.py."""

import json
import re

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, modeling_utils

from stepjepa.cli.main import main
from stepjepa.modeling.load import load_model, load_tokenizer
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


def test_a_file_without_its_flag_and_resuming_with_the_flag_alone(train, tmp_path):
    rows = str(tmp_path / "rows.jsonl")
    args = [rows, "--model_name", "tiny", "--output_dir", str(tmp_path / "out"), "--disable_tqdm", "true"]
    assert main(["train", *args, "--max_steps", "2", "--save_steps", "1"]) == 0
    assert main(["train", *args, "--max_steps", "3", "--resume_from_checkpoint", "--save_steps", "1"]) == 0
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert "--resume_from_checkpoint true" in record["command"] and f"--train_file {rows}" in record["command"]
    history = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert history["steps"] == 3


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
        (["--resume_from_checkpoint", "true", "--seed", "7"], "seed=42, not 7"),
        (["--resume_from_checkpoint", "true", "--system_prompt", "Be brief."], "system_prompt=None, not Be brief."),
    ):
        assert words in train("--step_jepa", *flags, status=2)
        assert (out / "model.safetensors").read_bytes() == before and (out / "checkpoint-1").is_dir()
    (out / "predictors.safetensors").write_bytes(b"")  # of a run with them
    train("--step_jepa", "--overwrite_output_dir", "--save_strategy", "no", "--lbd", "0")
    assert (out / "notes.txt").read_text() == "mine" and (out / "model.safetensors").is_file()
    assert not [name for name in ("checkpoint-1", "predictors.safetensors") if (out / name).exists()]


def test_a_run_killed_before_its_first_checkpoint_may_start_again(train, tmp_path):
    (tmp_path / "out" / "checkpoint-1").mkdir(parents=True)
    (tmp_path / "out" / "run.json").write_text('{"steps": 2}')
    (tmp_path / "out" / "resolved.yaml").write_text("{}")
    assert "no checkpoint to resume from; starting at step 0" in train("--resume_from_checkpoint", "true")


def test_training_on_an_adapter_is_refused(train, tmp_path):
    train("--lora", "--merge_lora", "false")
    assert (tmp_path / "out" / "adapter_config.json").exists()
    said = train("--model_name", str(tmp_path / "out"), status=2, output="next")
    assert "is a LoRA adapter" in said and not (tmp_path / "next").exists()


def test_skipped_rows_are_counted_and_short_runs_report_their_losses(train, tmp_path):
    number = {"messages": [{"role": "user", "content": 7}, {"role": "assistant", "content": "y"}]}
    data = write(tmp_path / "some.jsonl", [*ROWS[:8], {"messages": [{"role": "user", "content": "x"}]}, number])
    assert "2 skipped" in train("--step_jepa", "--train_file", data)
    report = json.loads((tmp_path / "out" / "data_report.json").read_text())["train"]
    assert (report["rows_read"], report["rows_kept"]) == (10, 8) and report["pairs"] > 0
    assert report["rows_skipped"] == {"no_assistant_message": 1, "content_not_text": 1}
    assert "line 9" in report["first_skipped"]["no_assistant_message"]
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())["metrics"]
    assert metrics["lm_loss"] > 1 and 0 < metrics["jepa_loss"] < 2


def test_targets_from_another_column(train, tmp_path):
    """Rows without a text there train as plain rows, and are counted."""
    data = tmp_path / "plans.jsonl"
    plans = ["Add.", "Count them.", None, " ", 7, "\ud83d"]
    rows = [{**row, "plan": plan} for row, plan in zip(ROWS, plans, strict=False)]
    write(data, [*rows, *ROWS[6:8]])
    flags = ["--train_file", str(data), "--jepa_target_column", "plan", "--readout", "mean"]
    text = train(*flags, output="out0")
    assert "2 pairs" in text and "mean over a view, target from plan" in text
    without = "6 without a pair (plain language modelling): no text in the column of the target views"
    assert f"{without} (first: {data} line 3: column 'plan' is null)" in text
    streamed = train(
        *flags, "--streaming", "--shuffle_buffer", "8", "--views", "standalone", "--readout_layer", "1", output="stream"
    )
    assert "layer 1, target from plan, views standalone" in streamed
    refused = train("--jepa_target_column", "plans", "--streaming", "--shuffle_buffer", "8", status=2, output="refused")
    assert "line 1: column 'plans' is missing (columns found: messages)" in refused
    config = JEPAConfig(str(tmp_path / "python"), max_steps=1, jepa_target_column="plan", disable_tqdm=True)
    trainer = JEPATrainer("tiny", config, rows[:2])
    assert trainer.data_reports["train"].pairs == 2
    fingerprints = {trainer.data_reports["train"].fingerprint}
    trainer = JEPATrainer("tiny", config, [{**row, "plan": "Another one."} for row in rows[:2]])
    assert trainer.data_reports["train"].fingerprint not in fingerprints


TUBE = "with objective semantic_tube"
REGULAR = "with objective regular"
# An objective; options that have no effect with it, and why.
UNREAD = {
    "--objective semantic_tube": {"--readout mean": TUBE, "--readout_layer 1": TUBE, "--jepa_target_column plan": TUBE},
    "--regular": {"--lbd 1": REGULAR, "--step_pairs all": REGULAR},
    "--step_jepa": {
        "--split_ratio 0.3": "with objective step_jepa",
        "--ema_momentum 0.5": "without --target_encoder ema",
        "--infonce_temperature 0.5": "without --jepa_loss infonce",
        "--sigreg_directions 9": "without --regularizer sigreg",
        "--lora_rank 4": "without --lora",
        "--eval_samples 7": "without --eval_metrics",
    },
}
NOTES = [
    (" ".join([objective, *unread]), [f"{flag.split()[0]} has no effect {why}" for flag, why in unread.items()])
    for objective, unread in UNREAD.items()
]
NOTES += [
    ("--step_jepa --lbd 0", ["--lbd 0: no pairs are made, so the run trains exactly like objective regular"]),
    ("--step_jepa --jepa_ratio 0", ["--jepa_ratio 0: no example keeps its pairs, so only the LM loss is trained"]),
    ("--step_jepa --jepa_ratio 0.5", []),
]


@pytest.mark.parametrize(("flags", "notes"), NOTES)
def test_options_without_effect_are_named(train, flags, notes):
    said = [line.removeprefix("note   ") for line in train(*flags.split()).splitlines() if line.startswith("note")]
    assert sorted(said) == sorted(notes)


def test_evaluation_data_by_name_path_and_rows(tmp_path):
    data = tmp_path / "rows.jsonl"
    write(data, ROWS[:8])
    tokenizer = load_tokenizer("tiny", (message["content"] for row in ROWS for message in row["messages"]))
    config = JEPAConfig(output_dir=str(tmp_path / "out"), objective="step_jepa", disable_tqdm=True)
    named = {"a": ROWS[:8], "b": str(data)}
    trainer = JEPATrainer(load_model("tiny", tokenizer), config, eval_dataset=named, processing_class=tokenizer)
    every = trainer.evaluate()
    assert every["eval_a_jepa_loss"] == every["eval_b_jepa_loss"] > 0
    for given in (str(data), data, ROWS[:8], "a"):
        assert trainer.evaluate(given)["eval_lm_loss"] == pytest.approx(every["eval_a_lm_loss"], abs=1e-6)


def test_the_last_step_is_evaluated_once(train, tmp_path):
    """And what is written is what another evaluation would give."""
    data = str(tmp_path / "rows.jsonl")
    flags = ["--step_jepa", "--eval_file", data]
    train(*flags, "--eval_strategy", "steps", "--eval_steps", "1", output="each")
    train(*flags, output="end")
    each, end = (json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("each", "end"))
    assert [sum("eval_loss" in entry for entry in one["log_history"]) for one in (each, end)] == [2, 1]
    for name in ("eval_loss", "eval_lm_loss", "eval_jepa_loss"):
        assert each["metrics"][name] == end["metrics"][name]
    assert "step" not in each["metrics"]


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


def test_kernels_of_the_hub_are_asked_of_transformers_or_missed_in_one_line(train, monkeypatch):
    monkeypatch.setattr(modeling_utils, "is_kernels_available", lambda: False)
    said = one_line(train("--use_kernels", status=2))
    assert "--use_kernels: Kernels are not available" in said and re.search("pip install (-U )?kernels", said)
    if transformers.__version__.startswith("5.12."):
        return  # its setter replaces the layers itself
    asked = []
    monkeypatch.setattr(modeling_utils.PreTrainedModel, "set_use_kernels", lambda self, wanted: asked.append(wanted))
    train("--use_kernels")
    assert asked == [True]
