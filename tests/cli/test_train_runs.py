"""What a run of ``stepjepa train`` leaves, repeats and refuses, beyond its errors about data."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from stepjepa.cli.main import main
from stepjepa.errors import ConfigError
from stepjepa.modeling.load import load_model, load_tokenizer
from stepjepa.training.config import JEPAConfig
from stepjepa.training.options import JEPAOptions
from stepjepa.training.setup import set_up_model
from stepjepa.training.trainer import JEPATrainer
from support.rows import step_rows, write
from support.runs import printed

ROWS = step_rows(24)


@pytest.fixture
def train(tmp_path, capfd):
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


def test_the_first_row_that_cannot_be_drawn_is_a_note(train, tmp_path):
    data = tmp_path / "bad_first.jsonl"
    data.write_text(json.dumps({"messages": []}) + "\n" + "".join(json.dumps(row) + "\n" for row in ROWS))
    said = train("--debug", "7", "--step_jepa", "--train_file", str(data), "--system_prompt=--hello")
    assert "note   the first row cannot be shown" in said and "model and records" in said


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


@pytest.mark.parametrize(
    ("flags", "notes"),
    [
        (
            "--objective semantic_tube --readout mean --readout_layer 1 --jepa_target_column plan",
            [
                f"--{name} has no effect with objective semantic_tube"
                for name in ("readout", "readout_layer", "jepa_target_column")
            ],
        ),
        (
            "--objective split --readout mean --jepa_target_column plan",
            ["--jepa_target_column has no effect with objective split"],
        ),
        (
            "--step_jepa --ema_momentum 0.5 --infonce_temperature 0.5 --regularizer vicreg --sigreg_directions 9 "
            "--lora_rank 4 --split_ratio 0.3",
            [
                "--split_ratio has no effect with objective step_jepa",
                "--ema_momentum has no effect without --target_encoder ema",
                "--infonce_temperature has no effect without --jepa_loss infonce",
                "--sigreg_directions has no effect without --regularizer sigreg",
                "--lora_rank has no effect without --lora",
            ],
        ),
        (
            "--regular --lbd 1 --step_pairs all",
            ["--lbd has no effect with objective regular", "--step_pairs has no effect with objective regular"],
        ),
        ("--predictors 0 --same_predictor", ["--same_predictor has no effect without --predictors"]),
        ("--step_jepa --lbd 0", ["--lbd 0: no pair is made, and the run trains exactly like objective regular"]),
        ("--step_jepa --jepa_ratio 0", ["--jepa_ratio 0: no example keeps its pairs, so the LM loss alone is trained"]),
        ("--step_jepa --jepa_ratio 0.5", []),
        ("--objective split --horizon 2", ["--horizon has no effect with objective split"]),
    ],
)
def test_options_without_effect_are_named(train, flags, notes):
    said = [line.removeprefix("note   ") for line in train(*flags.split()).splitlines() if line.startswith("note")]
    assert sorted(said) == sorted(notes)


@pytest.mark.parametrize("options", [{"lbd": "0.1"}, {"predictors": 1.5}, {"multi_horizon": 2}, {"lbd": float("nan")}])
def test_values_from_python(options):
    with pytest.raises(ConfigError):
        JEPAOptions(objective="step_jepa", **options).check()


@pytest.mark.parametrize(("dtype", "preset"), [("bfloat16", "tiny"), ("float16", "mini")])
def test_short_weights_take_the_packed_forward(dtype, preset):
    tokenizer = load_tokenizer(preset, (message["content"] for row in ROWS for message in row["messages"]))
    model = load_model(preset, tokenizer, seed=7, dtype=dtype)
    options = JEPAOptions(objective="step_jepa", forward="packed")
    options.check()
    _, setup = set_up_model(model, options, 7, "cpu", tokenizer=tokenizer)
    assert setup.forward == "packed"


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
