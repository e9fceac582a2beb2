"""FLOPs that a run counts, and runs of equal compute."""

from __future__ import annotations

import json

import pytest

from stepjepa.cli.main import main
from stepjepa.modeling.flops import KINDS
from stepjepa.modeling.load import load_model, load_tokenizer
from stepjepa.training.compute import equal_compute
from stepjepa.training.config import JEPAConfig
from stepjepa.training.trainer import JEPATrainer
from support.rows import step_rows

ROWS = step_rows(40)


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("tiny", (message["content"] for row in ROWS for message in row["messages"]))


def trained(tmp_path, tokenizer, **options):
    config = JEPAConfig(
        output_dir=str(tmp_path / "out"),
        per_device_train_batch_size=4,
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
        **options,
    )
    trainer = JEPATrainer(load_model("tiny", tokenizer), config, ROWS, processing_class=tokenizer)
    trainer.train()
    return trainer, [entry for entry in trainer.state.log_history if "lm_loss" in entry]


def test_flops_are_logged_by_kind(tmp_path, tokenizer):
    trainer, logs = trained(tmp_path, tokenizer, objective="step_jepa", max_steps=3, track_flop=True)
    assert len(logs) == 3
    sums = {kind: sum(entry[f"flops_{kind}"] for entry in logs) for kind in KINDS}
    assert all(sums[kind] > 0 for kind in ("trunk", "branch", "target", "head"))
    assert trainer.state.total_flos == pytest.approx(sum(sums.values()))
    _, plain = trained(tmp_path, tokenizer, objective="regular", max_steps=3, track_flop=True)
    assert sum(entry["flops_trunk"] for entry in plain) == pytest.approx(sums["trunk"], rel=0.2)
    assert all(entry["flops_branch"] == entry["flops_target"] == 0 for entry in plain)


def test_flops_are_not_counted_unless_asked(tmp_path, tokenizer):
    trainer, logs = trained(tmp_path, tokenizer, objective="regular", max_steps=1)
    assert trainer.state.total_flos == 0 and not any(name.startswith("flops") for name in logs[0])


def test_equal_compute_costs_what_a_regular_run_costs(tmp_path, tokenizer):
    """Full epochs of both: the sampled ratio covers the whole data set, so the totals agree to a step."""
    options = {"objective": "step_jepa", "step_pairs": "all", "num_train_epochs": 4, "track_flop": True}
    regular, _ = trained(tmp_path, tokenizer, **{**options, "objective": "regular"})
    whole, _ = trained(tmp_path, tokenizer, **options)
    same, logs = trained(tmp_path, tokenizer, same_flop=True, **options)
    assert regular.state.max_steps == whole.state.max_steps == 40
    assert whole.state.total_flos > 1.2 * regular.state.total_flos
    assert same.equal_compute.regular_steps == 40 and len(logs) == same.state.max_steps == same.equal_compute.steps < 35
    step = same.state.total_flos / same.state.max_steps
    assert abs(same.state.total_flos - regular.state.total_flos) < 1.5 * step


def test_at_least_one_step():
    assert equal_compute(1, 3.0).steps == 1
    assert equal_compute(100, 1.25) == (100, 80, 1.25)


def test_command_line(tmp_path, capsys):
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    flags = "--model_name tiny --step_jepa --max_steps 4 --batch_size 8 --same_flop --track_flop --disable_tqdm true"
    assert main(["train", "--train_file", str(data), "--output_dir", str(tmp_path / "out"), *flags.split()]) == 0
    said = capsys.readouterr().out
    assert "a step costs 1." in said and "steps for 4 regular ones" in said
    record = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert record["metrics"]["total_flos"] > 0
