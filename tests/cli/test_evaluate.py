"""``stepjepa evaluate`` on tiny models that it has trained itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import types
from types import SimpleNamespace

import pytest
import torch

from stepjepa.cli.main import main
from stepjepa.generation import local
from stepjepa.generation.local import generate_batch
from support.answers import SYSTEM, TEST, TRAIN, lines, write


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A run, an adapter on it, the adapter merged, and test rows; the models differ in what they say."""
    folder = tmp_path_factory.mktemp("evaluate")
    train = write(folder / "train.jsonl", TRAIN)
    write(folder / "test.jsonl", TEST)
    words = f"--train_file {train} --batch_size 8 --disable_tqdm true --learning_rate 3e-3 --system_prompt".split()
    run = [*words, SYSTEM, "--model_name", "tiny", "--step_jepa", "--max_steps", "40", "--save_steps", "40"]
    assert main(["train", *run, "--eval_file", train, "--output_dir", str(folder / "run")]) == 0
    adapter = [*words, SYSTEM, "--model_name", str(folder / "run"), "--step_jepa", "--lora", "--max_steps", "6"]
    adapter += ["--save_steps", "6", "--learning_rate", "0.02", "--merge_lora", "false"]
    assert main(["train", *adapter, "--output_dir", str(folder / "adapter")]) == 0
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoTokenizer

    merged = AutoPeftModelForCausalLM.from_pretrained(folder / "adapter").merge_and_unload()
    merged.save_pretrained(folder / "merged")
    AutoTokenizer.from_pretrained(folder / "adapter").save_pretrained(folder / "merged")
    return folder


@pytest.fixture
def evaluate(home, tmp_path, capsys):
    def run(model, *flags, output=None, status=0):
        where = [] if output is None else ["--output_dir", str(tmp_path / output)]
        words = ["--max_new_tokens", "24", "--batch_size", "5", *where, *flags]
        assert main(["evaluate", str(home / model), str(home / "test.jsonl"), *words]) == status
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return said.out if status == 0 else said.err

    return run


def test_several_metrics(evaluate, home, tmp_path):
    said = evaluate("run", "--metric", "gsm8k", "exact", "answer_nll", output="out")
    rows = lines(tmp_path / "out" / "predictions.jsonl")
    result = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["metrics.json", "predictions.jsonl"]
    assert [row["index"] for row in rows] == list(range(12)) and {row["stop_reason"] for row in rows} <= {
        "stop",
        "length",
    }
    for row, source in zip(rows, TEST, strict=True):
        assert row["question"] == source["messages"][0]["content"]
        assert row["gt_answer"] == row["ground_truth"] == source["ground_truth"]
        assert row["correct"] == (row["scores"]["gsm8k"] == 1.0) == (row["gen_answer"] == row["gt_answer"])
        assert row["answer_nll"] > 0 and row["answer_tokens"] > 5
    gsm8k, nll = result["metrics"]["gsm8k"], result["metrics"]["answer_nll"]
    assert gsm8k["correct"] == sum(row["correct"] for row in rows) and gsm8k["low"] <= gsm8k["value"] <= gsm8k["high"]
    total = sum(row["answer_nll"] * row["answer_tokens"] for row in rows)
    assert nll["value"] == pytest.approx(total / nll["tokens"]) and nll["tokens"] == sum(
        r["answer_tokens"] for r in rows
    )
    cut = sum(row["stop_reason"] == "length" for row in rows)
    assert result["generation"]["did_not_stop"]["count"] == cut
    assert result["generation"]["mean_tokens"] == pytest.approx(sum(row["tokens"] for row in rows) / 12)
    assert result["system_prompt"]["text"] == SYSTEM and result["rows"] == {
        "read": 12, "evaluated": 12, "skipped": {}, "first_skipped": {},
    }  # fmt: skip
    assert {"stepjepa", "torch", "transformers", "python"} == set(result["versions"])
    assert result["settings"]["max_new_tokens"] == 24 and set(result["identity"]) > {"model", "data"}
    assert f"({gsm8k['correct']} of 12)" in said and "nats per token" in said and "did not stop" in said


def test_the_answers_are_those_of_plain_transformers(evaluate, home, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    evaluate("run", "--metric", "exact", output="out")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(home / "run"), AutoTokenizer.from_pretrained(home / "run")
    found = lines(tmp_path / "out" / "predictions.jsonl")
    assert len({row["generated_response"] for row in found}) > 6
    for row, source in zip(found, TEST, strict=True):
        chat = [{"role": "system", "content": SYSTEM}, source["messages"][0]]
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=False)
        new = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False)[
            0, ids.shape[1] :
        ]
        assert row["generated_response"] == tokenizer.decode(new, skip_special_tokens=True)
        assert row["tokens"] == len(new)


def test_adapter_and_merged_model_say_the_same(evaluate, home, tmp_path):
    for name in ("run", "adapter", "merged"):
        evaluate(name, "--metric", "exact", "answer_nll", "--system_prompt", SYSTEM, output=name)
    evaluate("adapter", "--metric", "exact", "answer_nll", "--system_prompt", SYSTEM, "--no_lora", output="base")
    run, adapter, merged, base = (
        lines(tmp_path / n / "predictions.jsonl") for n in ("run", "adapter", "merged", "base")
    )
    texts = [[row["generated_response"] for row in rows] for rows in (run, adapter, merged, base)]
    assert texts[1] == texts[2] and texts[0] == texts[3] and texts[0] != texts[1]
    for one, other in zip(adapter, merged, strict=True):
        assert one["answer_nll"] == pytest.approx(other["answer_nll"], abs=1e-5)
    prints = [
        json.loads((tmp_path / n / "metrics.json").read_text())["identity"]["model"] for n in ("run", "adapter", "base")
    ]
    assert len(set(prints)) == 3


@pytest.mark.parametrize(("run", "checkpoint"), [("run", "checkpoint-40"), ("adapter", "checkpoint-6")])
def test_a_checkpoint_is_the_model_it_became(evaluate, home, tmp_path, run, checkpoint):
    """It holds the predictor tokens too."""
    evaluate(run, "--metric", "exact", "answer_nll", output="final")
    evaluate(f"{run}/{checkpoint}", "--metric", "exact", "answer_nll", output="checkpoint")
    final, early = (lines(tmp_path / name / "predictions.jsonl") for name in ("final", "checkpoint"))
    assert [row["generated_response"] for row in final] == [row["generated_response"] for row in early]
    for one, other in zip(final, early, strict=True):
        assert one["answer_nll"] == pytest.approx(other["answer_nll"], abs=1e-5)
    assert json.loads((tmp_path / "checkpoint" / "metrics.json").read_text())["system_prompt"]["text"] == SYSTEM


def test_the_likelihood_alone_is_the_evaluation_loss(evaluate, home, tmp_path, capsys):
    words = ["evaluate", str(home / "run"), str(home / "train.jsonl"), "--metric", "answer_nll"]
    assert main([*words, "--output_dir", str(tmp_path)]) == 0
    logged = json.loads((home / "run" / "metrics.json").read_text())["metrics"]["eval_lm_loss"]
    result = json.loads((tmp_path / "metrics.json").read_text())
    assert result["metrics"]["answer_nll"]["value"] == pytest.approx(logged, abs=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["answer_nll.jsonl", "metrics.json"]
    assert set(lines(tmp_path / "answer_nll.jsonl")[0]) == {"index", "question", "answer_nll", "answer_tokens"}
    assert result["generation"] == {} and "answers:" not in capsys.readouterr().err


def test_published_spellings_and_short_form(home, tmp_path, capsys):
    published = ["--model_path", str(home / "run"), "--test_file", str(home / "test.jsonl"), "--output_file"]
    options = (
        "--max_new_tokens 9 --temperature 0.0 --max_examples 5 --use_test_prompts --no_lora --metric exact".split()
    )
    assert main(["evaluate", *published, str(tmp_path / "a.json"), *options]) == 0
    assert "--no_lora changes nothing" in capsys.readouterr().err
    found = json.loads((tmp_path / "a.json").read_text())
    result = json.loads((tmp_path / "a.metrics.json").read_text())
    assert len(found) == 5 and result["system_prompt"]["text"] is None
    short = [str(home / "run"), str(home / "test.jsonl"), "--output_file", str(tmp_path / "b.jsonl"), *options]
    assert main(["evaluate", *short]) == 0
    assert lines(tmp_path / "b.jsonl") == found
    mixed = [str(home / "test.jsonl"), "--model_path", str(home / "run"), "--output_file", str(tmp_path / "c.jsonl")]
    assert main(["evaluate", *mixed, *options]) == 0
    assert (tmp_path / "c.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()


def test_default_folder_and_a_finished_evaluation(evaluate, home):
    folder = home / "run" / "evaluation-test"
    assert str(folder / "predictions.jsonl") in evaluate("run", "--metric", "exact", "--max_examples", "3")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert evaluate("run", "--metric", "exact", "--max_examples", "3").startswith("complete already")
    assert "max_examples 3, not none" in evaluate("run", "--metric", "exact", status=2)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    evaluate("run", "--metric", "exact", "--max_examples", "4", "--overwrite_output_dir")
    assert len(lines(folder / "predictions.jsonl")) == 4
    assert json.loads(evaluate("run", "--metric", "exact", "--max_examples", "4", "--json"))["rows"]["read"] == 4


def test_sampling_follows_its_seed(evaluate, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        evaluate("run", "--metric", "exact", "--temperature", "1.5", "--seed", str(seed), output=name)
    a, b, c = ((tmp_path / name / "predictions.jsonl").read_bytes() for name in "abc")
    assert a == b != c


@pytest.mark.parametrize("batches", [1, 2])
def test_interrupted_and_gone_on_with(evaluate, tmp_path, monkeypatch, batches):
    flags = ["--metric", "exact", "answer_nll", "--temperature", "1.0"]
    evaluate("run", *flags, output="whole")
    calls = []

    def counted(*args, **kwargs):
        if len(calls) == batches:
            raise KeyboardInterrupt
        calls.append(1)
        return generate_batch(*args, **kwargs)

    monkeypatch.setattr(local, "generate_batch", counted)
    assert "what is done is kept; the same command resumes" in evaluate("run", *flags, output="out", status=130)
    monkeypatch.setattr(local, "generate_batch", generate_batch)
    evaluate("run", *flags, output="out")
    one, other = ((tmp_path / name / "predictions.jsonl").read_bytes() for name in ("whole", "out"))
    assert one == other


_SLOW = """
import sys, time
from stepjepa.generation import local
plain = local.generate_batch
def slow(*args, **kwargs):
    time.sleep(0.5)
    return plain(*args, **kwargs)
local.generate_batch = slow
from stepjepa.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_killed_and_gone_on_with(evaluate, home, tmp_path):
    flags = ["--metric", "exact", "--temperature", "1.0", "--batch_size", "2"]
    evaluate("run", *flags, output="whole")
    words = [str(home / "run"), str(home / "test.jsonl"), "--max_new_tokens", "24", *flags]
    argv = [sys.executable, "-c", _SLOW, "evaluate", *words, "--output_dir", str(tmp_path / "out")]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ))
    partial, begin = tmp_path / "out" / "predictions.partial", time.monotonic()
    while not (partial.exists() and partial.read_bytes().count(b"\n") >= 3):
        assert process.poll() is None and time.monotonic() - begin < 120
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with open(partial, "ab") as file:
        file.write(b'{"replies": [[3, "half')
    assert 2 <= partial.read_bytes().count(b'"replies"') - 1 < 6, "killed in the middle"
    evaluate("run", *flags, output="out")
    one, other = ((tmp_path / name / "predictions.jsonl").read_bytes() for name in ("whole", "out"))
    assert one == other and not partial.exists()


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
    words = ["evaluate", str(home / "run"), data, "--max_new_tokens", "4", "--metric", "rouge"]
    pytest.importorskip("rouge_score")
    assert main([*words, "--metric_options", '{"variant": "rouge2"}', "--output_dir", str(tmp_path / "a")]) == 0
    said = capsys.readouterr()
    assert (
        "skipped 1: nothing that a metric could compare with (first: " in said.err and "rows.jsonl line 3" in said.err
    )
    assert "skipped        2 of 4 rows" in said.out
    rouge2 = lines(tmp_path / "a" / "predictions.jsonl")
    assert main([*words, "--output_dir", str(tmp_path / "b")]) == 0
    capsys.readouterr()
    assert [row["index"] for row in rouge2] == [0, 1] and rouge2[0]["correct"] is None
    assert [row["scores"] for row in rouge2] != [row["scores"] for row in lines(tmp_path / "b" / "predictions.jsonl")]
    assert main([*words, "--metric_options", '{"varient": 1}', "--output_dir", str(tmp_path / "c")]) == 2
    assert "did you mean 'variant'?" in capsys.readouterr().err


def test_prompts_without_room_are_refused(tmp_path, capsys):
    """GPT-2 has 256 learned positions."""
    from support.models import tiny_model
    from support.tokenizers import byte_bpe_tokenizer

    tokenizer = byte_bpe_tokenizer()
    tokenizer.save_pretrained(tmp_path / "gpt2")
    tiny_model("gpt2", vocab_size=len(tokenizer)).save_pretrained(tmp_path / "gpt2")
    rows = [{"question": text, "answer": "3"} for text in ("How many?", "x y " * 200, "What?")]
    words = ["evaluate", str(tmp_path / "gpt2"), write(tmp_path / "rows.jsonl", rows), "--metric", "gsm8k", "exact"]
    assert main([*words, "--max_new_tokens", "6"]) == 0
    said = capsys.readouterr()
    assert "the file's own, where it has one" in said.err and "1 prompts had no room" in said.out
    found = lines(tmp_path / "gpt2" / "evaluation-rows" / "predictions.jsonl")
    assert [row["stop_reason"] for row in found][1] == "refused" and found[1]["correct"] is False
    assert "room for 250" in found[1]["note"] and found[1]["gt_answer"] == "3" and found[1]["scores"]["exact"] == 0.0


def test_what_vllm_is_asked(evaluate, home, tmp_path, monkeypatch):
    seen = []

    class LLM:
        def __init__(self, **kwargs):
            seen.append(kwargs)

        def generate(self, prompts, params, use_tqdm):
            seen.append((len(prompts), params[0].temperature, params[0].max_tokens))
            text = SimpleNamespace(text=" The answer is 7. ", finish_reason="length", token_ids=[1, 2])
            return [SimpleNamespace(outputs=[text]) for _ in prompts]

    module = types.ModuleType("vllm")
    module.LLM, module.SamplingParams, module.__spec__ = LLM, SimpleNamespace, SimpleNamespace()
    monkeypatch.setitem(sys.modules, "vllm", module)
    evaluate("run", "--metric", "gsm8k", "--backend", "vllm", "--vllm_options", '{"max_model_len": 99}', output="out")
    assert seen[0] == {
        "model": str(home / "run"), "dtype": "auto", "trust_remote_code": False, "seed": 42, "max_model_len": 99,
    }  # fmt: skip
    assert seen[1:] == [(5, 0.0, 24), (5, 0.0, 24), (2, 0.0, 24)]
    (row, *_) = lines(tmp_path / "out" / "predictions.jsonl")
    assert (row["generated_response"], row["gen_answer"], row["stop_reason"], row["tokens"]) == (
        " The answer is 7. ", "7", "length", 2,
    )  # fmt: skip
    assert "takes no adapter" in evaluate("adapter", "--metric", "gsm8k", "--backend", "vllm", output="b", status=2)
    evaluate("adapter", "--metric", "gsm8k", "--backend", "vllm", "--no_lora", output="b")
    assert seen[4]["model"] == str(home / "run")


def test_out_of_memory_is_one_line(evaluate, tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(local, "generate_batch", full)
    message = evaluate("run", "--metric", "exact", output="out", status=2).splitlines()[-1]
    assert "out of memory with 5 questions at once" in message and "--overwrite_output_dir" in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("model", "flags", "words"),
    [
        ("run", [], "choose one or several of"),
        ("run", ["--metric", "gsm9k"], "did you mean 'gsm8k'"),
        ("nothing", ["--metric", "exact"], "nothing: no such folder"),
        ("test.jsonl", ["--metric", "exact"], "is a file; give the model's folder"),
        (".", ["--metric", "exact"], "no model in this folder"),
        ("run", ["--metric", "exact", "--temperature", "-1"], "temperature is -1.0"),
        ("run", ["--metric", "exact", "--max_examples", "0"], "max_examples is 0"),
        ("run", ["--metric", "exact", "--system_prompt", "x", "--use_test_prompts"], "--use_test_prompts keeps"),
        ("run", ["--metric", "exact", "--source_column", "x"], "go together"),
        ("run", ["--metric", "exact", "--source_column", "x", "--target_column", "y"], "no column 'x'"),
        ("run", ["--metric", "exact", "--chat_template", "nowhere.jinja"], "nowhere.jinja: cannot be read"),
        ("run", ["--metric", "exact", "--attn_implementation", "fast"], "cannot be loaded"),
        ("run", ["--metric", "exact", "--backend", "vllm"], "pip install 'stepjepa[vllm]'"),
        ("run", ["--metric", "answer_nll", "--backend", "vllm"], "needs --backend transformers"),
        ("run", ["--metric", "exact", "--output_file", "x.txt"], "must end in .jsonl or .json"),
        ("run", ["--metric", "nothing:f"], "no module nothing"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(evaluate, home, tmp_path, monkeypatch, model, flags, words):
    monkeypatch.chdir(tmp_path)
    if "vllm" in flags:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    before = sorted(str(path) for path in home.rglob("*"))
    where = [] if "--output_file" in flags else ["--output_dir", "out"]
    message = evaluate(model, *where, *flags, status=2)
    assert words in message and sum(line.startswith("stepjepa evaluate: error") for line in message.splitlines()) == 1
    assert len(message.splitlines()) == 1 or not flags
    assert not list(tmp_path.iterdir()) and sorted(str(path) for path in home.rglob("*")) == before


def test_a_run_that_has_not_ended(tmp_path, capsys):
    for step in (9, 10):
        (tmp_path / f"checkpoint-{step}").mkdir()
    assert main(["evaluate", str(tmp_path), "x.jsonl", "--metric", "exact"]) == 2
    assert f"the run has not ended: give {tmp_path}/checkpoint-10" in capsys.readouterr().err


def test_analysis(evaluate, tmp_path, capsys):
    pytest.importorskip("scipy.stats")
    for name in ("run", "adapter"):
        evaluate(name, "--metric", "gsm8k", "exact", output=name)
    files = [str(tmp_path / name / "predictions.jsonl") for name in ("run", "adapter")]
    assert main(["evaluate", "--analyze", files[0]]) == 0
    said = capsys.readouterr().out
    assert "12 answers" in said and "accuracy by gsm8k" in said and "tokens per response" in said
    assert main(["evaluate", "--analyze", *files, "--max_new_tokens", "3"]) == 0
    said = capsys.readouterr().out
    assert "B - A" in said and "McNemar" in said and "note     --max_new_tokens has no effect" in said
    assert main(["evaluate", "--analyze", *files, "--metric", "exact", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["both"] + record["only_a"] + record["only_b"] + record["neither"] == 12
    assert record["a"]["metric"] == "exact"
    assert main(["evaluate", "--analyze", "a", "b", "c"]) == 2
    assert "one file of predictions, or two" in capsys.readouterr().err
    assert main(["evaluate", "--analyze", str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err


def test_help_loads_no_torch():
    code = "import sys\nfrom stepjepa.cli.main import main\nassert main(['evaluate', '--help']) == 0\n"
    code += "assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--use_test_prompts" in done.stdout and "regex_equivalence" in done.stdout
