"""``stepjepa evaluate`` on tiny models that it has trained itself."""

import json

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForCausalLM, AutoTokenizer

from stepjepa.cli.main import main
from stepjepa.generation import local, place
from stepjepa.generation.local import generate_batch
from support.answers import SYSTEM, TEST, TRAIN
from support.rows import lines, write
from support.runs import printed

METRICS = ["--metric", "gsm8k", "exact", "answer_nll"]
SIZES = ["--max_new_tokens", "24", "--batch_size", "5"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A run with its evaluation, an adapter on it, the adapter merged, and test rows; the models say different things."""
    folder = tmp_path_factory.mktemp("evaluate")
    train, test = write(folder / "train.jsonl", TRAIN), write(folder / "test.jsonl", TEST)
    words = f"--train_file {train} --batch_size 8 --disable_tqdm true --step_jepa --system_prompt".split()
    run = "--model_name tiny --learning_rate 3e-3 --max_steps 40 --save_steps 40 --eval_file".split()
    assert main(["train", *words, SYSTEM, *run, test, "--output_dir", str(folder / "run")]) == 0
    adapter = f"--model_name {folder}/run --lora --max_steps 6 --save_steps 6 --learning_rate 0.02 --merge_lora false"
    assert main(["train", *words, SYSTEM, *adapter.split(), "--output_dir", str(folder / "adapter")]) == 0
    merged = AutoPeftModelForCausalLM.from_pretrained(folder / "adapter").merge_and_unload()
    merged.save_pretrained(folder / "merged")
    AutoTokenizer.from_pretrained(folder / "adapter").save_pretrained(folder / "merged")
    assert main(["evaluate", str(folder / "run"), test, *METRICS, *SIZES]) == 0
    return folder


@pytest.fixture
def evaluate(home, tmp_path, capsys):
    def run(model, *flags, output=None, status=0):
        where = [] if output is None else ["--output_dir", str(tmp_path / output)]
        return printed(capsys, ["evaluate", home / model, home / "test.jsonl", *SIZES, *where, *flags], status)

    return run


def of(folder):
    return lines(folder / "predictions.jsonl"), json.loads((folder / "metrics.json").read_text())


def test_answers_are_those_of_plain_transformers_and_the_metrics_are_theirs(home):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(home / "run"), AutoTokenizer.from_pretrained(home / "run")
    rows, result = of(home / "run" / "evaluation-test")
    assert [row["index"] for row in rows] == list(range(12)) and len({row["generated_response"] for row in rows}) > 6
    for row, source in zip(rows, TEST, strict=True):
        chat = [{"role": "system", "content": SYSTEM}, source["messages"][0]]
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=False)
        mask = torch.ones_like(ids)
        new = model.generate(ids, attention_mask=mask, max_new_tokens=24, do_sample=False)[0, ids.shape[1] :]
        assert row["generated_response"] == tokenizer.decode(new, skip_special_tokens=True)
        assert row["tokens"] == len(new) and row["question"] == source["messages"][0]["content"]
        assert row["gt_answer"] == row["ground_truth"] == source["ground_truth"]
        assert row["correct"] == (row["scores"]["gsm8k"] == 1.0) == (row["gen_answer"] == row["gt_answer"])
    gsm8k, nll = result["metrics"]["gsm8k"], result["metrics"]["answer_nll"]
    assert gsm8k["correct"] == sum(row["correct"] for row in rows) and gsm8k["low"] <= gsm8k["value"] <= gsm8k["high"]
    assert nll["tokens"] == sum(row["answer_tokens"] for row in rows)
    assert nll["value"] * nll["tokens"] == pytest.approx(sum(row["answer_nll"] * row["answer_tokens"] for row in rows))
    logged = json.loads((home / "run" / "metrics.json").read_text())["metrics"]["eval_lm_loss"]
    assert nll["value"] == pytest.approx(logged, abs=1e-5)
    cut = sum(row["stop_reason"] == "length" for row in rows)
    assert result["generation"]["did_not_stop"]["count"] == cut
    assert result["generation"]["mean_tokens"] == pytest.approx(sum(row["tokens"] for row in rows) / 12)
    assert result["system_prompt"]["text"] == SYSTEM
    assert result["rows"] == dict(read=12, evaluated=12, skipped={}, first_skipped={})  # noqa: C408


def test_adapters_merged_models_and_checkpoints_say_the_same(evaluate, home, tmp_path):
    """A checkpoint holds the predictor tokens too."""
    names = ["adapter", "merged", "run/checkpoint-40", "adapter/checkpoint-6"]
    for name in names:
        evaluate(name, *METRICS, "--system_prompt", SYSTEM, output=name)
    evaluate("adapter", *METRICS, "--no_lora", output="base")
    run, of_run = of(home / "run" / "evaluation-test")
    adapter, merged, early, early_adapter, base = (of(tmp_path / name) for name in (*names, "base"))
    for found, others in ((run, (base, early)), (adapter[0], (merged, early_adapter))):
        for other, _ in others:
            assert [row["generated_response"] for row in found] == [row["generated_response"] for row in other]
            for one, same in zip(found, other, strict=True):
                assert one["answer_nll"] == pytest.approx(same["answer_nll"], abs=1e-5)
    texts = [[row["generated_response"] for row in rows] for rows in (run, adapter[0])]
    assert texts[0] != texts[1]
    assert len({one["identity"]["model"] for one in (of_run, adapter[1], base[1])}) == 3
    assert base[1]["system_prompt"]["text"] == SYSTEM, "as in training"


def test_the_likelihood_alone_and_answers_that_follow_it(evaluate, home, tmp_path):
    whole, out = of(home / "run" / "evaluation-test"), tmp_path / "out"
    evaluate("run", "--metric", "answer_nll", output="out")
    assert sorted(path.name for path in out.iterdir()) == ["answer_nll.jsonl", "metrics.json"]
    rows = lines(out / "answer_nll.jsonl")
    assert set(rows[0]) == {"index", "question", "answer_nll", "content_nll", "end_nll", "answer_tokens", "end_tokens"}
    assert [row["answer_nll"] for row in rows] == pytest.approx([row["answer_nll"] for row in whole[0]])
    assert json.loads((out / "metrics.json").read_text())["generation"] == {}
    evaluate("run", *METRICS, output="out")
    rows, found = of(out)
    for name in ("gsm8k", "exact"):
        assert found["metrics"][name] == whole[1]["metrics"][name]
    assert found["metrics"]["answer_nll"]["value"] == pytest.approx(whole[1]["metrics"]["answer_nll"]["value"])
    assert [row["generated_response"] for row in rows] == [row["generated_response"] for row in whole[0]]
    assert sorted(path.name for path in out.iterdir()) == ["metrics.json", "predictions.jsonl"]


def test_published_spellings_and_short_form(home, tmp_path):
    run, test = str(home / "run"), str(home / "test.jsonl")
    flags = "--max_new_tokens 9 --temperature 0.0 --max_examples 5 --use_test_prompts --no_lora --metric exact".split()
    published = ["--model_path", run, "--test_file", test]
    for name, words in (("a.json", published), ("b.jsonl", [run, test]), ("c.jsonl", [test, "--model_path", run])):
        assert main(["evaluate", *words, "--output_file", str(tmp_path / name), *flags]) == 0
    found = json.loads((tmp_path / "a.json").read_text())
    result = json.loads((tmp_path / "a.metrics.json").read_text())
    assert len(found) == 5 and result["system_prompt"]["text"] is None
    assert lines(tmp_path / "b.jsonl") == found == lines(tmp_path / "c.jsonl")


def test_a_finished_evaluation(evaluate, home):
    folder = home / "run" / "evaluation-test"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert set(before) == {"metrics.json", "predictions.jsonl"}
    said = evaluate("run", *METRICS)
    assert said.startswith("already complete") and str(folder / "predictions.jsonl") in said
    assert " of 12)" in said and "nats per token" in said and "did not stop" in said
    assert "max_examples none, not 3" in evaluate("run", *METRICS, "--max_examples", "3", status=2)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    evaluate("run", "--metric", "exact", "--max_examples", "4", "--overwrite_output_dir")
    assert json.loads(evaluate("run", "--metric", "exact", "--max_examples", "4", "--json"))["rows"]["read"] == 4
    for name, content in before.items():
        (folder / name).write_bytes(content)


def test_a_further_metric_scores_the_stored_answers_again(evaluate, home, tmp_path, monkeypatch):
    """The same files as of an evaluation by all metrics at once; what is stored is kept, the model is not loaded."""
    whole = of(home / "run" / "evaluation-test")
    evaluate("run", "--metric", "gsm8k", output="out")
    first = of(tmp_path / "out")
    with monkeypatch.context() as patched:
        patched.setattr(place, "load_model", None)
        said = evaluate("run", "--metric", "gsm8k", "exact", output="out")
        assert "\nexact  " in said and "already complete" not in said
        rows, found = of(tmp_path / "out")
        likelihoods = ("answer_nll", "content_nll", "end_nll", "answer_tokens", "end_tokens")
        assert rows == [{name: row[name] for name in row if name not in likelihoods} for row in whole[0]]
        assert found["metrics"] == {name: whole[1]["metrics"][name] for name in ("gsm8k", "exact")}
        assert (found["rows"], found["identity"]) == (whole[1]["rows"], whole[1]["identity"])
        assert found["generation"] == first[1]["generation"]
        # One of those that are there decides what is right; the others stay.
        evaluate("run", "--metric", "exact", output="out")
        rows, found = of(tmp_path / "out")
        assert list(found["metrics"]) == ["exact", "gsm8k"] == found["settings"]["metric"]
        assert [row["correct"] for row in rows] == [row["scores"]["exact"] == 1.0 for row in rows]
        assert evaluate("run", "--metric", "exact", "gsm8k", output="out").startswith("already complete")
        options = ["--metric_options", '{"reference_column": "ground_truth"}']
        assert "was made with metric_options" in evaluate("run", "--metric", "exact", *options, output="out", status=2)
    assert (tmp_path / "out" / "predictions.jsonl").is_file() and len(list((tmp_path / "out").iterdir())) == 2


def test_interrupted_and_resumed(evaluate, tmp_path, monkeypatch):
    flags = ["--metric", "exact", "answer_nll", "--temperature", "1.5"]
    evaluate("run", *flags, output="whole")
    calls = []

    def counted(*args, **kwargs):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(1)
        return generate_batch(*args, **kwargs)

    monkeypatch.setattr(local, "generate_batch", counted)
    assert "completed work is kept; the same command resumes" in evaluate("run", *flags, output="out", status=130)
    monkeypatch.setattr(local, "generate_batch", generate_batch)
    evaluate("run", *flags, output="out")
    evaluate("run", *flags, "--seed", "1", output="other")
    one, same, other = ((tmp_path / name / "predictions.jsonl").read_bytes() for name in ("whole", "out", "other"))
    assert one == same != other


def test_a_failing_metric_loses_nothing(evaluate, tmp_path, monkeypatch):
    metric = ["--metric", f"{tmp_path}/mine.py:f"]
    (tmp_path / "mine.py").write_text("def f(generated, reference, row):\n    return 1 / (generated == reference)\n")
    message = evaluate("run", *metric, output="out", status=2)
    assert "ZeroDivisionError" in message and "test.jsonl line" in message
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["predictions.partial"]
    (tmp_path / "mine.py").write_text("def f(generated, reference, row):\n    return generated == reference\n")
    monkeypatch.setattr(local, "generate_batch", None)  # nothing is generated again
    evaluate("run", *metric, output="out")
    result = json.loads((tmp_path / "out" / "metrics.json").read_text())["metrics"]
    (found,) = result.values()
    assert found["kind"] == "accuracy" and found["n"] == 12


def test_rows_and_options_of_metrics(home, tmp_path, capsys):
    rows = [*TEST[:2], {"question": "How many?", "answer": " "}, {"messages": []}]
    data = write(tmp_path / "rows.jsonl", rows)
    words = ["evaluate", str(home / "run"), data, "--max_new_tokens", "4", "--metric", "exact"]
    assert main([*words, "--output_dir", str(tmp_path / "a")]) == 0
    said = capsys.readouterr()
    assert "skipped 1: no reference answer that a metric could use (first: " in said.err
    assert "skipped        2 of 4 rows" in said.out
    options = ["--metric_options", '{"reference_column": "ground_truth"}']
    assert main([*words, *options, "--output_dir", str(tmp_path / "b")]) == 0
    found, other = (lines(tmp_path / name / "predictions.jsonl") for name in "ab")
    assert [row["index"] for row in found] == [row["index"] for row in other] == [0, 1]
    assert [row["gt_answer"] for row in other] == [row["ground_truth"] for row in TEST[:2]]
    assert [row["gt_answer"] for row in found] == [row["messages"][-1]["content"] for row in TEST[:2]]
