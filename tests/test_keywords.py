"""Signatures of the public functions: the written file is that of the option dataclasses; a type checker reads it."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import transformers

from stepjepa import api

ROOT = Path(__file__).resolve().parents[1]
# Of other libraries nothing is read: they take minutes, and nothing here is about them.
SETTINGS = f"""[mypy]
mypy_path = {ROOT / "src"}
ignore_missing_imports = True
[mypy-torch.*,transformers.*,accelerate.*,peft.*,datasets.*,numpy.*,scipy.*,rich.*]
follow_imports = skip
"""
# Every line with a mark is an error, and no other one.
USED = """
import stepjepa
from stepjepa import parts

run = stepjepa.train(train_file=["rows.jsonl"], objective="step_jepa", lbd=1, adam_epsilon=1e-6, output_dir="run")
print(run.metrics["lm_loss"])
stepjepa.train(learning_rat=0.1)  # error: learning_rat
stepjepa.train(predictors="two")  # error: predictors
stepjepa.train(forward="inlin")  # error: forward
stepjepa.train(objective="my.py:Objective", objective_options={"from_end": 2}, jepa_loss="my.py:loss")
settings = {"model_name": "mini"}
stepjepa.evaluate(model_name="run", test_file="test.jsonl", metric=["gsm8k"]).metrics
stepjepa.evaluate(model_name="run", metric="gsm8k")  # error: metric
stepjepa.generate(file="train.jsonl", backend="openai", attempts=2)
stepjepa.generate(attempts=None)  # error: attempts
stepjepa.report(folders=["a", "b"]).path.name
stepjepa.report(output="page.html")  # error: output
stepjepa.check([{"text": "a"}], "mini", objective="split", eval_file=[{"text": "b"}])
stepjepa.check("rows.jsonl", model_name="mini")  # error: model_name
stepjepa.inspect("rows.jsonl", "tiny", row=1, predictors=2).save("row.html")
stepjepa.inspect("rows.jsonl", step_pairs="every")  # error: step_pairs
stepjepa.prepare("raw.jsonl", output_file="rows.jsonl", min_steps=2)
stepjepa.prepare("raw.jsonl", output_dir="rows")  # error: output_dir
stepjepa.study("study.yaml", jobs=2, executor="slurm")
stepjepa.study("study.yaml", jobs="2")  # error: jobs
stepjepa.analyze(file="test.jsonl", models=["run"], layers=[0, -1])
stepjepa.analyze(model="run")  # error: model
stepjepa.export("run/checkpoint-5", "out", merge_lora=True)
stepjepa.export("run/checkpoint-5", "out", merge=True)  # error: merge
stepjepa.doctor(model_name="mini")
stepjepa.demo(task="sorting")  # error: task
parts.Encoder(object(), objective="step_jepa", seed=1)
parts.Encoder(object(), num_train_epochs=3)  # error: num_train_epochs
"""


def test_the_file_is_that_of_the_options(monkeypatch):
    """Names and types of transformers' options are those of the version that is tested."""
    if f"transformers=={transformers.__version__} ; python_version >=" not in (ROOT / "constraints.txt").read_text():
        pytest.skip("another version of transformers has other options")
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    tool = importlib.import_module("keywords")
    assert tool.FILE.read_text(encoding="utf-8") == tool.text(), "run: python tools/keywords.py"


@pytest.mark.slow
def test_a_wrong_name_and_a_wrong_type_are_errors(tmp_path):
    (tmp_path / "mypy.ini").write_text(SETTINGS)
    (tmp_path / "used.py").write_text(USED)
    examples = [line for name in api.__all__ for line in re.findall(r">>> (.*)", getattr(api, name).__doc__)]
    assert len(examples) >= len(api.__all__)
    (tmp_path / "examples.py").write_text("\n".join([f"from stepjepa import {', '.join(api.__all__)}", *examples]))
    marks = (line.partition("# error: ")[2] for line in USED.splitlines())
    wrong = {number: mark for number, mark in enumerate(marks, 1) if mark}
    done = subprocess.run([sys.executable, "-m", "mypy", "."], cwd=tmp_path, capture_output=True, text=True)
    errors = re.findall(r"^\w+\.py:(\d+): error: (.*)", done.stdout, re.MULTILINE)
    named = [int(line) for line, text in errors if f'"{wrong.get(int(line))}"' in text]
    assert len(wrong) == 14 and [int(line) for line, _ in errors] == named == list(wrong), done.stdout + done.stderr
