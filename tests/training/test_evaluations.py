"""Evaluations while a model trains: how answers are scored, and runs that end once a metric has reached a value."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from transformers import EarlyStoppingCallback, TrainerControl, TrainerState

from stepjepa.evaluation.run import AnswerScorer
from stepjepa.modeling.load import load_model
from stepjepa.training.checkpoints import stop_reason
from stepjepa.training.options import RunOptions
from support.rows import step_rows
from support.runs import copy_of, one_line, result_of, resume, train

EVALUATED = "--eval_strategy steps --eval_steps 2 --max_steps 12 --track_flop --metric_for_best_model".split()


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


def test_from_the_command_line_with_the_best_checkpoint(tmp_path, capsys):
    flags = "--eval_metrics prefix exact --eval_samples 3 --eval_max_new_tokens 3 --eval_strategy steps --eval_steps 2"
    flags += f" --eval_file {tmp_path / 'rows.jsonl'} --load_best_model_at_end true --metric_for_best_model eval_prefix"
    assert train(tmp_path / "out", *flags.split()) == 0
    out = capsys.readouterr().out
    assert "prefix 0.000" in out and "did_not_stop " in out
    history = json.loads((tmp_path / "out" / "metrics.json").read_text())["log_history"]
    assert sum("eval_prefix" in entry for entry in history) == 4  # after steps 2, 4 and 6, and of the best model


def read(folder):
    metrics = json.loads((folder / "metrics.json").read_text())
    return metrics["steps"], [entry for entry in metrics["log_history"] if "eval_loss" in entry]


@pytest.mark.slow
def test_a_run_that_has_reached_its_value_is_complete(tmp_path, capsys):
    out, flags = tmp_path / "out", ("--eval_file", tmp_path / "rows.jsonl", *EVALUATED)
    assert train(tmp_path / "all", *flags, "lm_loss") == 0
    steps, evaluations = read(tmp_path / "all")
    losses = [entry["eval_lm_loss"] for entry in evaluations]
    assert steps == 12 and losses[0] > losses[1] > losses[2]
    assert [entry["examples"] for entry in evaluations] == [8, 16, 24, 32, 40, 48]
    flops = [entry["total_flos"] for entry in evaluations]
    assert 0 < flops[0] < flops[1]
    assert train(out, *flags, "lm_loss", "--stop_at", losses[1]) == 0
    assert f"lm_loss has reached --stop_at {losses[1]:g}" in capsys.readouterr().out
    assert read(out)[0] == 4 and [entry["eval_lm_loss"] for entry in read(out)[1]] == losses[:2]
    before = result_of(out)
    capsys.readouterr()
    assert resume(out, *flags, "lm_loss", "--stop_at", losses[1]) == 0
    assert "complete, 4 of 4 steps" in capsys.readouterr().out and result_of(out) == before
    killed = copy_of(out, tmp_path / "killed", killed_after=4)  # before the final model was written
    assert resume(killed, *flags, "lm_loss", "--stop_at", losses[1]) == 0
    assert read(killed)[0] == 4 and result_of(killed)["weights"] == before["weights"]
    assert json.loads((killed / "run.json").read_text())["stop_at"] == losses[1]
    assert resume(out, *flags, "lm_loss", "--stop_at", losses[2]) == 0  # which takes longer
    assert read(out)[0] == 6 and [entry["eval_lm_loss"] for entry in read(out)[1]] == losses[:3]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--eval_metrics exact", "--eval_metrics needs questions to answer; give --eval_file"),
        ("--eval_file FILE --eval_metrics answer_nll", "leave it out"),
        ("--eval_file FILE --stop_at 1", "--stop_at needs --eval_strategy and --metric_for_best_model"),
        ("--eval_file FILE --eval_strategy steps --metric_for_best_model exact --stop_at 1", "an evaluation has loss,"),
        ("--eval_file FILE --early_stopping_patience 2", "--early_stopping_patience needs --eval_strategy and"),
    ],
)
def test_what_cannot_be_scored_or_stopped_at(flags, said, tmp_path, capsys):
    words = flags.replace("FILE", str(tmp_path / "rows.jsonl")).split()
    assert train(tmp_path / "out", *words) == 2
    assert said in one_line(capsys.readouterr().err) and not (tmp_path / "out").exists()


@pytest.mark.slow
def test_patience_counts_the_evaluations_without_a_better_one(tmp_path, capsys):
    # The number of pairs stays the same, so the first evaluation is the best; after a kill those before it count.
    flags = ("--eval_file", tmp_path / "rows.jsonl", *EVALUATED, "num_pairs", "--early_stopping_patience", 2)
    out = tmp_path / "out"
    assert train(out, *flags) == 0
    assert "num_pairs has not improved in the last evaluations (--early_stopping_patience 2)" in capsys.readouterr().out
    assert [entry["step"] for entry in read(out)[1]] == [2, 4, 6] and read(out)[0] == 6
    killed = copy_of(out, tmp_path / "killed", killed_after=4)
    assert resume(killed, *flags) == 0 and read(killed)[0] == 6


@pytest.mark.parametrize("greater", [False, True])
@pytest.mark.parametrize("patience", [1, 2, 3, 9])
def test_patience_stops_where_transformers_does(patience, greater):
    args = SimpleNamespace(metric_for_best_model="lm_loss", greater_is_better=greater)
    theirs, ours = EarlyStoppingCallback(patience), RunOptions(early_stopping_patience=patience)
    state = TrainerState()
    for value in (3.0, 2.0, 2.5, 1.5, 1.5, 1.6, 1.7, 1.0):
        entry = {"eval_loss": 0.0, "eval_lm_loss": value}
        state.log_history.append(entry)
        control = TrainerControl()
        theirs.on_evaluate(args, state, control, entry)
        assert bool(stop_reason(ours, args, state)) == control.should_training_stop
        reached = value >= 2.5 if greater else value <= 2.5
        assert bool(stop_reason(RunOptions(stop_at=2.5), args, state)) == reached
        if control.should_training_stop:
            return
        best = state.best_metric
        if best is None or (value > best if greater else value < best):
            state.best_metric = value
