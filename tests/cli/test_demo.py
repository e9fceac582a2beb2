"""The demo at a size that learns nothing: both arms, the table, the files, and no overwriting."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest
from transformers import AutoModelForCausalLM

from stepjepa.cli.main import main
from stepjepa.study import demo


@pytest.fixture
def one_process(monkeypatch):
    """One arm in a process of its own, as all are; the others here, which is quicker."""
    in_processes = demo._run_arms

    def run_arms(options):
        setting = demo.SETTINGS[options.task]
        first, *others = setting.arms
        with monkeypatch.context() as patch:
            patch.setitem(demo.SETTINGS, options.task, replace(setting, arms={first: setting.arms[first]}))
            in_processes(options)
        for arm in others:
            demo.run_arm(arm, options)

    monkeypatch.setattr(demo, "_run_arms", run_arms)


def test_demo(tmp_path, capsys, monkeypatch, one_process):
    for extra in ("matplotlib", "sklearn", "statsmodels"):
        monkeypatch.setitem(sys.modules, extra, None)  # as where they are not installed
    out = tmp_path / "demo"
    argv = ["demo", "--output_dir", str(out), "--train_rows", "16", "--test_rows", "4"]
    assert main(argv) == 0
    printed = capsys.readouterr().out
    for words in (
        "accuracy",
        "LM loss",
        "JEPA loss",
        "cosine",
        "examples/s",
        "effective rank",
        "step_jepa - regular: +0.0 points (",
        "Whether the training of step_jepa helps is not established",
    ):
        assert words in " ".join(printed.split())
    record = json.loads((out / "metrics.json").read_text())
    assert set(record) == {"options", "regular", "step_jepa"}
    for arm in ("regular", "step_jepa"):
        assert len(record[arm]["correct"]) == 4
        assert record[arm]["lm_loss"] > 0 and record[arm]["examples_per_second"] > 0
        assert AutoModelForCausalLM.from_pretrained(out / arm).config.model_type == "llama"
    assert record["regular"]["jepa_loss"] is None
    assert record["step_jepa"]["jepa_loss"] == pytest.approx(1 - record["step_jepa"]["cosine"])
    settings = [json.loads((out / arm / "run.json").read_text())["settings"] for arm in ("regular", "step_jepa")]
    differing = {key for key in settings[0] if settings[0][key] != settings[1][key]}
    assert differing == {"objective", "predictors", "output_dir"}
    page = (out / "report.html").read_text()
    assert f"All of it on a page: {out / 'report.html'}" in printed
    assert all(words in page for words in ("step_jepa", "effective rank", "<svg"))
    assert main(argv) == 2
    assert "not empty" in capsys.readouterr().err


@pytest.mark.long
def test_a_planning_task_with_its_control(tmp_path, capsys, one_process):
    argv = ["--task", "path_star", "--train_rows", "64", "--test_rows", "4", "--batch_size", "16", "--lbd", "0.5"]
    assert main(["demo", "--output_dir", str(tmp_path / "demo"), *argv]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "step_jepa - regular: " in printed and "step_jepa - shuffled (the control): " in printed
    assert "one seed of each; not compared at equal compute" in printed  # there is a control
    record = json.loads((tmp_path / "demo" / "metrics.json").read_text())
    assert list(record) == ["options", "regular", "step_jepa", "shuffled"]
    assert {len(record[arm]["correct"]) for arm in record if arm != "options"} == {4}
    settings = {
        arm: json.loads((tmp_path / "demo" / arm / "run.json").read_text())["settings"]
        for arm in ("step_jepa", "shuffled")
    }
    assert settings["step_jepa"]["lbd"] == 0.5 and settings["step_jepa"]["step_pairs"] == "plan"
    one, other = settings.values()
    assert {key for key in one if one[key] != other[key]} == {"control", "output_dir"}
    (row, *_) = (tmp_path / "demo" / "test.jsonl").read_text().splitlines()
    assert json.loads(row)["task"] == "path_star" and json.loads(row)["total_steps"] == 3
