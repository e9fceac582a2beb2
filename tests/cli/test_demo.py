"""The demo at a size that learns nothing: a study of one seed, its tables, its page, and no overwriting."""

import json

from transformers import AutoModelForCausalLM

from stepjepa.cli.main import main
from stepjepa.study import stages
from support.runs import run_here


def test_demo(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(stages, "run_process", run_here)
    out = tmp_path / "demo"
    argv = ["demo", "--output_dir", str(out), "--train_rows", "16", "--test_rows", "4", "--seed", "3"]
    argv += ["--set", "evaluate.max_new_tokens=8", "jobs=1"]  # one at a time: they load models in this process
    assert main(argv) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for words in (
        "gsm8k 0.0000 0.0000",
        "answer_nll",
        "target_rank",
        "step_jepa - regular: +0.0 points (",
        "Whether the training of step_jepa helps is not established: one seed of each",
        f"the report: {out / 'report.html'}",
    ):
        assert words in printed
    runs = {arm: out / "runs" / arm / "seed-3" for arm in ("regular", "step_jepa")}
    for run in runs.values():
        assert len((run / "evaluation-test" / "predictions.jsonl").read_text().splitlines()) == 4
        assert AutoModelForCausalLM.from_pretrained(run / "model").config.model_type == "llama"
    settings = [json.loads((run / "model" / "run.json").read_text())["settings"] for run in runs.values()]
    differing = {key for key in settings[0] if settings[0][key] != settings[1][key]}
    assert differing == {"objective", "predictors", "output_dir"}
    assert main(argv) == 0  # a finished demo is not repeated
    assert "seed 3: done" not in capsys.readouterr().out
    assert main([*argv, "--set", "base.max_steps=1"]) == 2
    assert "holds results of another study" in capsys.readouterr().err
