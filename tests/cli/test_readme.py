"""Every `stepjepa` command of the README runs, on made-up data and with a local model for the one from the Hub."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from stepjepa.cli.main import main
from support.answers import harness_stand_in
from support.rows import step_rows

README = Path(__file__).resolve().parents[2] / "README.md"
HUB_MODELS = ("meta-llama/Llama-3.2-1B-Instruct", "Qwen/Qwen2.5-7B-Instruct")


def readme_commands() -> list[str]:
    """The lines of code blocks that begin with ``stepjepa``, continued lines joined."""
    blocks = README.read_text(encoding="utf-8").split("```")[1::2]
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [" ".join(line.split()) for line in lines if line.startswith("stepjepa ")]


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    from stepjepa.modeling.load import load_model, load_tokenizer

    monkeypatch.chdir(tmp_path)
    rows = step_rows(12)
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    raw = [
        {"question": f"What is {n} + 1?", "answer": f"{n} + 1 = {n + 1} in all.\nSo it is {n + 1}.\n#### {n + 1}"}
        for n in range(9)
    ]
    for name in ("gsm8k_train.jsonl", "questions.jsonl", "test.jsonl"):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in raw))
    programs = {"text": "Add one.", "code": "def f(x):\n    return x + 1", "test_list": ["assert f(1) == 2"]}
    (tmp_path / "mbpp.jsonl").write_text(json.dumps(programs) + "\n")
    tokenizer = load_tokenizer("tiny", (message["content"] for row in rows for message in row["messages"]))
    load_model("tiny", tokenizer, seed=1).save_pretrained("model")
    tokenizer.save_pretrained("model")
    return tmp_path


def test_there_are_commands():
    names = {command.split()[1] for command in readme_commands()}
    assert names == set("prepare generate check inspect train evaluate analyze study report".split())


@pytest.mark.parametrize("command", readme_commands())
def test_command(command, workplace, capsys, monkeypatch):
    harness_stand_in(monkeypatch)
    command = command.replace("mmlu,ifeval", "sums,capitals")
    for name in HUB_MODELS:
        command = command.replace(name, "model")
    words = shlex.split(command.replace("--model_name mini", "--model_name tiny"))[1:]
    short = {"train": ["--max_steps", "1"], "generate": ["--max_new_tokens", "3", "--attempts", "1"]}
    short["study"] = [] if "--list" in words else ["--dry_run"]
    short["evaluate"] = [] if "--analyze" in words else ["--max_new_tokens", "3"]
    short["analyze"] = ["--max_new_tokens", "3"] if "--energy" in words else []
    words += short.get(words[0], [])
    if words[0] in ("evaluate", "analyze", "report"):
        for run in ("runs/regular", "runs/step"):
            shutil.copytree("model", run)
            if words[0] == "report":
                (Path(run) / "metrics.json").write_text('{"log_history": []}')
            if "--analyze" in words:
                main(f"evaluate --model_name {run} --test_file test.jsonl --metric gsm8k --max_new_tokens 3".split())
    if words[0] == "report":
        main(
            "analyze test.jsonl --models runs/regular runs/step --objective llm_jepa --output_dir runs/geometry".split()
        )
    assert main(words) == 0, capsys.readouterr().err
    if words[0] == "train":
        output = words[words.index("--output_dir") + 1]
        for name in ("resolved.yaml", "run.json", "metrics.json", "data_report.json"):
            assert (workplace / output / name).is_file()
        model = AutoModelForCausalLM.from_pretrained(output)
        assert model.generate(model.dummy_inputs["input_ids"] % 50, max_new_tokens=2).shape[1] > 2
