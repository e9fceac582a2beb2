"""A run that is complete stays as it is; one that lacks its model gets it; more steps train on."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from stepjepa.cli.main import main
from stepjepa.modeling.forward import causal_lm
from stepjepa.modeling.load import load_tokenizer
from stepjepa.study import stages
from stepjepa.study.records import StudyRunFolder, read_record
from support.rows import step_rows
from support.runs import STEPS, files_of, one_line, result_of, resume, train
from support.training import trainer_for

CONSTANT = ("--lr_scheduler_type", "constant")
KINDS = {
    "steps": (),
    "epochs": ("--max_steps", -1, "--num_train_epochs", 1.2),
    "streaming": ("--streaming", "--shuffle_buffer", 8),
    "same_flop": ("--same_flop", "--max_steps", 8),
    "no_checkpoints": ("--save_strategy", "no"),
}


@pytest.fixture(scope="module", params=KINDS)
def finished(request, tmp_path_factory):
    """The folder of a run that has ended, and the flags it was started with."""
    out = tmp_path_factory.mktemp(request.param) / "out"
    flags = (*CONSTANT, *KINDS[request.param])
    assert train(out, *flags) == 0
    return out, flags


def test_a_complete_run_is_left_untouched(finished, capsys):
    out, flags = finished
    before = files_of(out)
    for _ in range(2):
        assert resume(out, *flags) == 0
        assert f"{out}: complete, " in capsys.readouterr().out
        assert files_of(out) == before
    assert resume(out, *flags, "--seed", 7) == 2  # another run's
    assert files_of(out) == before


def test_where_only_the_model_is_missing_nothing_is_trained(finished, capsys):
    out, flags = finished
    expected, checkpoints = result_of(out), sorted(out.glob("checkpoint-*"))
    before = [files_of(folder) for folder in checkpoints]
    every = ["model.safetensors", "manifest.json", "metrics.json"] if "steps" in str(out) else ["model.safetensors"]
    for lost in every if checkpoints else []:
        (out / lost).unlink()
        assert resume(out, *flags) == 0
        assert result_of(out) == expected
        assert sorted(out.glob("checkpoint-*")) == checkpoints
        assert [files_of(folder) for folder in checkpoints] == before
    capsys.readouterr()
    assert resume(out, *flags) == 0 and "complete" in capsys.readouterr().out


@pytest.mark.parametrize(
    "more", [("--max_steps", 10), ("--max_steps", -1, "--num_train_epochs", 2)], ids=["steps", "epochs"]
)
def test_more_steps_train_on_with_the_schedule_of_all_of_them(tmp_path, caplog, more):
    out = tmp_path / "out"
    assert train(out, "--lbd_schedule", "cosine") == 0
    first = result_of(out)["log"][:STEPS]
    assert resume(out, "--lbd_schedule", "cosine", *more) == 0
    assert "run of 6 steps; this one has 10" in caplog.text
    log = [entry for entry in result_of(out)["log"] if "lm_loss" in entry]
    assert [entry["step"] for entry in log] == list(range(1, 11)) and log[:STEPS] == first
    # Linear to 0 over ten steps: the first new step has not the 0 of the old schedule's end.
    assert [entry["learning_rate"] for entry in log[STEPS:]] == pytest.approx(
        [0.01 * (1 - n / 10) for n in range(6, 10)]
    )
    assert log[STEPS]["lbd"] > log[STEPS + 1]["lbd"] > 0
    before = files_of(out)
    assert resume(out, "--lbd_schedule", "cosine", *more) == 0 and files_of(out) == before


def test_fewer_steps_than_were_trained_are_refused(tmp_path, capsys):
    out = tmp_path / "out"
    assert train(out) == 0
    before = files_of(out)
    capsys.readouterr()
    assert resume(out, "--max_steps", 4) == 2
    line = one_line(capsys.readouterr().err)
    assert "checkpoint-6" in line and "it has 6 steps and only 4 are asked for" in line
    assert files_of(out) == before


def test_more_steps_without_a_checkpoint_are_refused(tmp_path, capsys):
    out = tmp_path / "out"
    assert train(out, "--save_strategy", "no") == 0
    before = files_of(out)
    assert resume(out, "--save_strategy", "no", "--max_steps", 8) == 2
    assert "ended after 6 steps and no checkpoint of it is left" in one_line(capsys.readouterr().err)
    assert files_of(out) == before


@pytest.mark.parametrize("options", [{}, {"streaming": True, "shuffle_buffer": 8}], ids=["rows", "streaming"])
def test_the_python_trainer_trains_nothing_after_the_last_step(tmp_path, options):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in step_rows(20)))
    tokenizer = load_tokenizer("tiny", (m["content"] for row in step_rows(20) for m in row["messages"]))
    options = {**options, "save_strategy": "steps", "save_steps": 2, "max_steps": 3, "lr_scheduler_type": "constant"}
    whole, again = (trainer_for(tmp_path, tokenizer, str(rows), objective="step_jepa", **options) for _ in range(2))
    expected = whole.train()
    found = again.train(resume_from_checkpoint=True)
    assert (found.global_step, found.training_loss) == (3, expected.training_loss)
    weights = dict(causal_lm(again.model).named_parameters())
    for name, value in causal_lm(whole.model).named_parameters():
        assert torch.equal(weights[name], value), name
    assert not (tmp_path / "out" / "checkpoint-4").exists()


@pytest.mark.parametrize("killed", ["before its record", "before its model", "after a checkpoint"])
def test_a_study_trains_no_step_twice(tmp_path, monkeypatch, killed):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in step_rows(20)))
    run = StudyRunFolder(tmp_path / "run")
    run.path.mkdir()
    run.train_config.write_text(
        f"train_file: {rows}\nmodel_name: tiny\nmax_steps: 4\nsave_steps: 2\nlr_scheduler_type: constant\n"
        "logging_steps: 1\nper_device_train_batch_size: 4\ndisable_tqdm: true\nobjective: step_jepa\n"
    )

    def in_this_process(log, argv, environment):
        assert main(argv) == 0

    monkeypatch.setattr(stages, "run_process", in_this_process)
    stages.carry_out(str(run.path), ["train"], {})
    assert run.done("train")["steps"] == 4
    expected = result_of(run.model)
    run.record("train").unlink()
    with open(run.train_config, "a") as file:
        file.write("save_total_limit: 1\n")  # so that the checkpoint to go on from is gone in the end
    if killed != "before its record":
        for name in ("model.safetensors", "metrics.json"):
            (run.model / name).unlink()
    if killed == "after a checkpoint":
        shutil.rmtree(run.model / "checkpoint-4")
    stages.carry_out(str(run.path), ["train"], {})
    assert result_of(run.model) == expected
    record = read_record(run.record("train"))
    assert (record["steps"], record["resumed_at_step"]) == (
        4,
        {"before its record": None, "before its model": 4}.get(killed, 2),
    )
    left = [2, 4] if killed == "before its record" else [4]  # a complete run is left as it is
    assert sorted(run.model.glob("checkpoint-*")) == [run.model / f"checkpoint-{step}" for step in left]


@pytest.mark.parametrize("left", ["a part of the weights", "the weights of an earlier run"])
def test_a_model_whose_writing_was_cut_off_is_not_evaluated(tmp_path, capsys, left):
    out = tmp_path / "out"
    assert train(out, "--max_steps", 1, "--save_strategy", "no") == 0
    capsys.readouterr()
    if left == "a part of the weights":
        (out / "model.safetensors").write_bytes((out / "model.safetensors").read_bytes()[:-100])
    else:
        (out / "manifest.json").unlink()
        (out / ".export").mkdir()
    words = ["--test_file", tmp_path / "rows.jsonl", "--metric", "answer_nll", "--output_dir", tmp_path / "scores"]
    assert main(["evaluate", "--model_name", str(out), *map(str, words)]) == 2
    line = one_line(capsys.readouterr().err, "evaluate")
    assert "--resume_from_checkpoint true" in line and ("bytes" in line or "its writing was cut off" in line)


def test_the_checkpoint_of_another_run_does_not_open_a_folder(tmp_path, capsys):
    """Nor is anything removed where it lies; in a folder of its own the run goes on."""
    for name in ("a", "b"):
        assert train(tmp_path / name, *CONSTANT) == 0
    shutil.copytree(tmp_path / "b" / "checkpoint-2", tmp_path / "b" / "checkpoint-best")
    before = files_of(tmp_path / "a"), files_of(tmp_path / "b")
    capsys.readouterr()
    named = ("--resume_from_checkpoint", tmp_path / "b" / "checkpoint-best")
    assert train(tmp_path / "a", *CONSTANT, *named) == 2
    assert "the folder is not empty" in one_line(capsys.readouterr().err)
    assert train(tmp_path / "c", *CONSTANT, *named) == 0
    assert result_of(tmp_path / "c") == result_of(tmp_path / "b")
    assert (files_of(tmp_path / "a"), files_of(tmp_path / "b")) == before


def test_a_stream_can_be_trained_on_again_after_a_resume(tmp_path):
    tokenizer = load_tokenizer("tiny", (message["content"] for row in step_rows(20) for message in row["messages"]))
    options = {"streaming": True, "shuffle_buffer": 8, "max_steps": 3, "save_strategy": "steps", "save_steps": 2}
    trainer = trainer_for(tmp_path, tokenizer, rows=step_rows(20), **options)
    trainer.train()
    trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    trainer.train()
    assert trainer.state.global_step == 3


def test_evaluations_of_an_earlier_model_are_not_reported_as_this_ones(tmp_path, capsys):
    out, test = tmp_path / "out", tmp_path / "test.jsonl"
    assert train(out, *CONSTANT) == 0
    test.write_text("".join(json.dumps(row) + "\n" for row in step_rows(4)))
    words = ["evaluate", "--model_name", str(out), "--test_file", str(test), "--metric", "answer_nll"]
    assert main(words) == 0 and main(["report", str(out), "--output_file", str(tmp_path / "a.html")]) == 0
    assert "earlier model" not in capsys.readouterr().err and "answer_nll" in (tmp_path / "a.html").read_text()
    assert resume(out, *CONSTANT, "--max_steps", STEPS + 2) == 0
    assert main(["report", str(out), "--output_file", str(tmp_path / "b.html")]) == 0
    said = capsys.readouterr()
    assert "evaluation-test: is of an earlier model in this folder" in said.out + said.err
    assert (
        main([*words, "--overwrite_output_dir"]) == 0
        and main(["report", str(out), "--output_file", str(tmp_path / "c.html")]) == 0
    )
    assert "earlier model" not in capsys.readouterr().err
