"""Several answers to a question, from the command line to the report; vLLM is a stand-in that writes them."""

import json

import pytest

import stepjepa
from stepjepa.cli.main import main
from stepjepa.errors import ConfigError
from stepjepa.evaluation.run import evaluate_model
from stepjepa.generation import local
from stepjepa.generation.output import seed_of
from support.answers import vllm_stand_in
from support.models import tiny_model
from support.rows import lines, write
from support.runs import printed
from support.tokenizers import byte_bpe_tokenizer

RIGHT, WRONG = "def f(x):\n    return x + 1", "def f(x):\n    return 0"
ROWS = [{"text": f"Task {n}?", "code": RIGHT} for n in range(1, 4)]
RIGHT_OF = {0: 0, 1: 2, 2: 4}  # question -> right ones of its four answers
SIZES = "--backend vllm --max_new_tokens 8 --batch_size 5".split()
EXACT = ["--metric", "exact", "prefix"]
SEVERAL = ["--samples_per_question", "4", "--temperature", "0.8"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("code")
    for name in ("a", "b"):
        tokenizer = byte_bpe_tokenizer()
        tokenizer.save_pretrained(folder / name)
        tiny_model("gpt2", vocab_size=len(tokenizer)).save_pretrained(folder / name)
    write(folder / "rows.jsonl", ROWS)
    return folder


@pytest.fixture
def evaluate(home, monkeypatch, capsys):
    texts = {
        seed_of(42, 4 * index + n): RIGHT if n < right else WRONG for index, right in RIGHT_OF.items() for n in range(4)
    }
    vllm_stand_in(monkeypatch, lambda params: {"text": texts.get(params.seed, WRONG), "finish_reason": "stop"})

    def run(name, *flags, status=0):
        return printed(capsys, ["evaluate", home / name, home / "rows.jsonl", *SIZES, *flags], status)

    return run


def test_several_answers_to_a_question(evaluate, home, capsys, tmp_path):
    said = " ".join(evaluate("a", *EXACT, *SEVERAL).split())
    assert "exact 0.5000" in said and "exact pass@4 66.7 %" in said
    folder = home / "a" / "evaluation-rows"
    rows, found = lines(folder / "predictions.jsonl"), json.loads((folder / "metrics.json").read_text())["metrics"]
    assert [(row["index"], row["sample"]) for row in rows] == [(i, n) for i in range(3) for n in range(1, 5)]
    assert [row["correct"] for row in rows] == [n < right for right in RIGHT_OF.values() for n in range(4)]
    assert rows[0]["gen_answer"] == WRONG and rows[0]["gt_answer"] == RIGHT
    assert list(found) == ["exact", "exact pass@4", "prefix", "prefix pass@4"]
    one = found["exact"]
    assert (one["kind"], one["value"], one["n"]) == ("score", 0.5, 3) and one["low"] < 0.5 < one["high"]
    assert found["exact pass@4"] | {"low": 0, "high": 0} == {
        "kind": "accuracy", "value": 2 / 3, "low": 0, "high": 0, "correct": 2, "n": 3,
    }  # fmt: skip
    # One answer each, as ever; and what reads predictions takes the first of several.
    evaluate("b", *EXACT)
    alone = lines(home / "b" / "evaluation-rows" / "predictions.jsonl")
    assert "sample" not in alone[0] and len(alone) == 3
    files = [str(home / name / "evaluation-rows" / "predictions.jsonl") for name in "ab"]
    assert main(["evaluate", "--analyze", files[0]]) == 0
    said = capsys.readouterr().out
    assert "3 answers, 2 right, 1 wrong" in said
    assert main(["evaluate", "--analyze", *files, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["only_a"] == 2
    assert main(["report", str(home / "a"), str(home / "b"), "--output_file", str(tmp_path / "report.html")]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "exact pass@4" in page and "2 of 3 right" in page and "mean of 3 answers" in page


def test_interrupted_between_the_answers_to_a_question(evaluate, tmp_path, monkeypatch):
    exact = ["--metric", "exact", *SEVERAL, "--output_dir"]
    evaluate("a", *exact, str(tmp_path / "whole"))
    answer, groups = local.VllmGenerator.answer, []

    def broken(self, requests, done):
        for group in answer(self, requests, done):
            if len(groups) == 1:
                raise KeyboardInterrupt
            groups.append(group)
            yield group

    monkeypatch.setattr(local.VllmGenerator, "answer", broken)
    evaluate("a", *exact, str(tmp_path / "out"), status=130)
    monkeypatch.setattr(local.VllmGenerator, "answer", answer)
    three = ["--samples_per_question", "3"]
    assert "samples_per_question 4, not 3" in evaluate("a", *exact, str(tmp_path / "out"), *three, status=2)
    evaluate("a", *exact, str(tmp_path / "out"))
    one, same = ((tmp_path / name / "predictions.jsonl").read_bytes() for name in ("whole", "out"))
    assert one == same and len(groups) == 1


def test_from_python(evaluate, home, tmp_path):
    files = {"model_name": str(home / "a"), "test_file": str(home / "rows.jsonl"), "output_dir": str(tmp_path)}
    words = {"metric": ["exact"], "backend": "vllm", "max_new_tokens": 8}
    result = stepjepa.evaluate(**files, **words, samples_per_question=4, temperature=0.8, max_examples=2)
    assert result.value("exact") == 0.25 and len(result.predictions) == 8
    # A model in memory.
    tokenizer = byte_bpe_tokenizer()
    model = tiny_model("gpt2", vocab_size=len(tokenizer))
    settings = {"max_new_tokens": 3, "samples_per_question": 6}
    result = evaluate_model(model, tokenizer, ROWS, ["exact"], temperature=1.0, **settings)
    assert list(result.metrics) == ["exact", "exact pass@5", "exact pass@6"]
    assert result.metrics["exact"]["correct"] == 0 and len(result.predictions) == 18
    assert len({one.generated_response for one in result.predictions[:6]}) > 1
    with pytest.raises(ConfigError, match="would be the same; give a --temperature above 0"):
        evaluate_model(model, tokenizer, ROWS, ["exact"], **settings)
