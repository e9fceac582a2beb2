"""``stepjepa evaluate --harness``: against a stand-in of lm-eval, and against lm-eval itself on a task of one's own."""

import json

import pytest
import yaml

import stepjepa
from stepjepa.cli.main import main
from stepjepa.errors import ConfigError
from stepjepa.modeling.load import load_model
from support.answers import SYSTEM, TEST, TRAIN, harness_stand_in
from support.rows import lines, write
from support.runs import printed


@pytest.fixture
def home(tmp_path, monkeypatch, tokenizer):
    for part in (load_model("tiny", tokenizer), tokenizer):
        part.save_pretrained(tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def evaluate(capsys, *words, status=0):
    said = printed(capsys, ["evaluate", *words], status)
    return said.splitlines()[-1] if status else said


def test_tasks_are_an_evaluation_with_intervals(home, capsys, monkeypatch):
    seen = harness_stand_in(monkeypatch)
    (home / "own").mkdir()
    flags = "--harness sums,capitals --harness_include own --harness_fewshot 2 --system_prompt Short. --batch_size 3".split()
    said = evaluate(capsys, "a", *flags)
    assert "sums exact_match 0.5000, 95 % interval 0.3040 to 0.6960" in said and "part acc       0.5000" in said
    (one,) = seen
    assert one["tasks"] == ["capitals", "sums"] and one["include"] == "own"
    asked = {name: one[name] for name in ("num_fewshot", "limit", "system_instruction", "apply_chat_template")}
    assert asked == {"num_fewshot": 2, "limit": None, "system_instruction": "Short.", "apply_chat_template": True}
    model = one["model"]
    assert model.batch_size == 3 and model.add_bos_token is False
    assert {*model.chat_template_args} == {"date_string", "chat_template"}
    folder = home / "a" / "evaluation-sums-capitals"
    found = json.loads((folder / "metrics.json").read_text())
    assert list(found["metrics"])[-2:] == ["sums exact_match", "sums exact_match strict"]
    one = found["metrics"]["sums exact_match"]
    assert (one["kind"], one["value"], one["stderr"], one["n"]) == ("score", 0.5, 0.1, 6)
    assert found["metrics"]["sums exact_match strict"]["low"] is None and found["versions"]["lm_eval"] == "0.4.13"
    assert evaluate(capsys, "a", *flags).startswith("already complete") and len(seen) == 1
    assert "harness_fewshot 2, not none" in evaluate(capsys, "a", *flags[:4], *flags[6:], status=2)
    assert main(["report", "a", "--output_file", "report.html"]) == 0
    page = (home / "report.html").read_text()
    assert "exact_match strict" in page and "mean of 6 answers" in page


@pytest.mark.parametrize(("value", "confirmed"), [(None, False), ("0", False), ("1", True)])
def test_tasks_that_run_programs_have_the_switch_of_the_harness(home, monkeypatch, value, confirmed):
    seen = harness_stand_in(monkeypatch)
    monkeypatch.delenv("HF_ALLOW_CODE_EVAL", raising=False)
    if value is not None:
        monkeypatch.setenv("HF_ALLOW_CODE_EVAL", value)
    stepjepa.evaluate(model_name="a", harness=["sums"], output_dir="out", max_examples=1)
    assert seen[0]["confirm_run_unsafe_code"] is confirmed


def test_a_task_that_fails_is_one_line_and_leaves_nothing(home, monkeypatch):
    harness_stand_in(monkeypatch, fails=["sums"])
    words = {"model_name": "a", "harness": ["capitals*", "sums"], "output_dir": "out", "max_examples": 3}
    with pytest.raises(ConfigError, match="--harness: ConnectionError: no network"):
        stepjepa.evaluate(**words)
    assert [*(home / "out").rglob("*")] == [home / "out" / "evaluation-capitals--sums"], "an empty folder"
    seen = harness_stand_in(monkeypatch)
    result = stepjepa.evaluate(**words)
    assert seen[0]["limit"] == 3 and result.value("capitals exact_match") == 1.0


@pytest.mark.long
def test_lm_eval_itself_asks_as_we_do(home, capsys, monkeypatch):
    """A task of one's own, no network: an adapter, whose generated answers are those of an evaluation of the same rows."""
    HFLM = pytest.importorskip("lm_eval.models.huggingface").HFLM
    generate, answers = HFLM.generate_until, []

    def generate_until(self, requests, **more):
        answers.extend(generate(self, requests, **more))
        return answers

    monkeypatch.setattr(HFLM, "generate_until", generate_until)
    train = f"train --train_file {write(home / 'train.jsonl', TRAIN)} --step_jepa --batch_size 8 --disable_tqdm true"
    words = [*train.split(), "--system_prompt", SYSTEM]
    run = "--model_name tiny --learning_rate 3e-3 --max_steps 40 --output_dir run"
    assert main([*words, *run.split()]) == 0
    adapter = "--model_name run --lora --merge_lora false --max_steps 6 --learning_rate 0.02 --output_dir adapter"
    assert main([*words, *adapter.split()]) == 0
    rows = [{"question": row["messages"][0]["content"], "answer": row["ground_truth"]} for row in TEST]
    data = write(home / "rows.jsonl", rows)
    task = {"task": "own_sums", "output_type": "generate_until", "test_split": "test", "dataset_path": "json"}
    task |= {"dataset_kwargs": {"data_files": {"test": data}}, "metric_list": [{"metric": "exact_match"}]}
    task |= {"doc_to_text": "{{question}}", "doc_to_target": "{{answer}}"}
    task |= {"generation_kwargs": {"max_gen_toks": 24, "until": ["zzz"]}}
    (home / "tasks").mkdir()
    (home / "tasks" / "own_sums.yaml").write_text(yaml.safe_dump(task))
    evaluate(capsys, "adapter", "--harness", "own_*", "--harness_include", "tasks", "--max_examples", "5")
    evaluate(capsys, "adapter", data, "--metric", "exact", "--max_new_tokens", "24", "--max_examples", "5")
    rows = lines(home / "adapter" / "evaluation-rows" / "predictions.jsonl")
    assert len(rows) == 5 and len(set(answers)) > 1
    assert answers == [row["generated_response"] for row in rows]
    metrics = json.loads((home / "adapter" / "evaluation-own_" / "metrics.json").read_text())["metrics"]
    assert set(metrics) == {"own_sums exact_match"} and metrics["own_sums exact_match"]["n"] == 5
    said = evaluate(capsys, "a", "--harness", "own_sum", "--harness_include", "tasks", status=2)
    assert "no task 'own_sum'; did you mean 'own_sums'?" in said
