"""Answers scored at every evaluation: what is asked, how it is summed, where it goes."""

import json

import pytest

from stepjepa.cli.main import main
from stepjepa.evaluation.run import AnswerScorer
from stepjepa.modeling.load import load_model
from support.rows import step_rows, write
from support.sharding import launch

FLAGS = "--model_name tiny --regular --max_steps 4 --eval_strategy steps --eval_steps 2 --save_steps 2 --batch_size 2"


def test_the_means_are_those_of_all_processes(tokenizer):
    model = load_model("tiny", tokenizer, seed=1)
    rows = step_rows(7)
    scorer = AnswerScorer(rows, ["exact", "prefix"], 5, max_new_tokens=4)
    whole = scorer(model, tokenizer)
    assert list(whole) == ["exact", "prefix", "did_not_stop"] and whole["exact"][1] == whole["did_not_stop"][1] == 5
    parts = [scorer(model, tokenizer, process, 6) for process in range(6)]
    assert parts[5] == dict.fromkeys(whole, (0.0, 0)), "more processes than questions"
    for name, (total, number) in whole.items():
        assert (sum(part[name][0] for part in parts), sum(part[name][1] for part in parts)) == (total, number)


@pytest.fixture
def files(tmp_path):
    for name, rows in (("train", step_rows(12)), ("test", step_rows(4))):
        write(tmp_path / f"{name}.jsonl", rows)
    return tmp_path


def test_from_the_command_line_with_the_best_checkpoint(files, capsys):
    words = f"train --train_file {files}/train.jsonl --eval_file {files}/test.jsonl --output_dir {files}/out {FLAGS}"
    words += " --eval_metrics prefix exact --eval_samples 3 --eval_max_new_tokens 3 --disable_tqdm true"
    words += " --load_best_model_at_end true --metric_for_best_model eval_prefix"
    assert main(words.split()) == 0
    out = capsys.readouterr().out
    assert "prefix 0.000" in out and "did_not_stop " in out
    history = json.loads((files / "out" / "metrics.json").read_text())["log_history"]
    assert sum("eval_prefix" in entry for entry in history) == 3  # after steps 2 and 4, and of the best model


@pytest.mark.long
def test_two_processes(files):
    words = f"train --train_file {files}/train.jsonl --eval_file {files}/test.jsonl --output_dir {files}/two {FLAGS}"
    words += " --eval_metrics exact --eval_samples 3 --eval_max_new_tokens 3 --disable_tqdm true"
    done = launch(words.split(), "stepjepa")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "eval_exact" in done.stdout


@pytest.mark.parametrize(
    "flags, said",
    [
        ("--eval_metrics exact", "--eval_metrics answers the questions of a file; give --eval_file"),
        ("--eval_file FILE --eval_metrics exakt", "did you mean exact?"),
        ("--eval_file FILE --eval_metrics answer_nll", "leave it out"),
        ("--eval_file FILE --eval_metrics exact --eval_samples 0", "eval_samples is 0"),
    ],
)
def test_what_cannot_be_scored(files, capsys, flags, said):
    flags = flags.replace("FILE", f"{files}/test.jsonl")
    words = f"train --train_file {files}/train.jsonl --model_name tiny --output_dir {files}/no {flags}"
    assert main(words.split()) == 2
    assert said in capsys.readouterr().err and not (files / "no").exists()
