"""The demo at a size that learns nothing: both arms, the table, the files, and no overwriting."""

from __future__ import annotations

import json
import sys

import pytest
from transformers import AutoModelForCausalLM

from stepjepa.cli.main import main
from stepjepa.study import demo


def test_demo(tmp_path, capsys, monkeypatch):
    for extra in ("matplotlib", "sklearn", "statsmodels"):
        monkeypatch.setitem(sys.modules, extra, None)  # as where they are not installed
    in_processes = demo._run_arms

    def run_arms(options):
        """One arm in a process of its own, as both are; the other here, which is quicker."""
        with monkeypatch.context() as patch:
            patch.setattr(demo, "ARMS", demo.ARMS[:1])
            in_processes(options)
        demo.run_arm(demo.ARMS[1], options)

    monkeypatch.setattr(demo, "_run_arms", run_arms)
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
