"""A run's folder: complete runs stay, damaged checkpoints are passed over, and two runs never write to one folder."""

import shutil

import pytest

from stepjepa.cli.main import main
from stepjepa.errors import ConfigError
from stepjepa.training import checkpoints as saving
from stepjepa.training.run_folder import RunFolder
from stepjepa.utils.files import write_manifest
from support.rows import step_rows, write
from support.runs import CONSTANT, STEPS, copy_of, files_of, one_line, printed, result_of, resume, train
from support.training import trainer_for

fcntl = pytest.importorskip("fcntl")


def refused(capsys, out, *flags):
    """The one line of a run that is refused, and leaves the folder as it was."""
    before = files_of(out)
    capsys.readouterr()
    assert resume(out, *flags) == 2 and files_of(out) == before
    return one_line(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("flags", "may_be_lost"),
    [
        ([], ["model.safetensors", "manifest.json", "metrics.json"]),
        (["--max_steps", -1, "--num_train_epochs", 1.2], ["model.safetensors"]),
        (["--streaming", "--shuffle_buffer", 8], ["model.safetensors"]),
        (["--save_strategy", "no"], []),
    ],
    ids=["steps", "epochs", "streaming", "no_checkpoints"],
)
def test_a_complete_run_stays_as_it_is_and_gets_back_what_it_lacks(tmp_path, ended, capsys, flags, may_be_lost):
    out, flags = tmp_path / "out", (*CONSTANT, *flags)
    assert copy_of(ended, tmp_path) if flags == CONSTANT else train(out, *flags) == 0
    before, expected = files_of(out), result_of(out)
    refused(capsys, out, *flags, "--seed", 7)  # another run's
    for lost in may_be_lost:
        (out / lost).unlink()
        assert resume(out, *flags) == 0 and result_of(out) == expected
        saved, now = ({n: v for n, v in one.items() if "checkpoint" in n} for one in (before, files_of(out)))
        assert now == saved
    before, _ = files_of(out), capsys.readouterr()
    assert resume(out, *flags) == 0 and f"{out}: complete, " in capsys.readouterr().out and files_of(out) == before


@pytest.mark.parametrize(
    "more", [("--max_steps", 10), ("--max_steps", -1, "--num_train_epochs", 2)], ids=["steps", "epochs"]
)
def test_more_steps_train_on_with_the_schedule_of_all_of_them(tmp_path, caplog, more):
    out, schedule = tmp_path / "out", ("--lbd_schedule", "cosine")
    assert train(out, *schedule) == 0
    first = result_of(out)["log"][:STEPS]
    assert resume(out, *schedule, *more) == 0
    assert "run of 6 steps, and this run has 10" in caplog.text
    log = [entry for entry in result_of(out)["log"] if "lm_loss" in entry]
    assert [entry["step"] for entry in log] == list(range(1, 11)) and log[:STEPS] == first
    # Linear to 0 over ten steps: the first new step has not the 0 of the old schedule's end.
    rates = [entry["learning_rate"] for entry in log[STEPS:]]
    assert rates == pytest.approx([0.01 * (1 - n / 10) for n in range(6, 10)])
    assert log[STEPS]["lbd"] > log[STEPS + 1]["lbd"] > 0


def test_steps_that_cannot_be_trained_are_refused(ended, tmp_path, capsys):
    out = copy_of(ended, tmp_path)
    assert "checkpoint-6: it has 6 steps, but only 4 are requested" in refused(capsys, out, *CONSTANT, "--max_steps", 4)
    for checkpoint in out.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    line = refused(capsys, out, *CONSTANT, "--max_steps", 8)
    assert "ended after 6 steps and has no checkpoint left" in line


def test_a_model_whose_writing_was_cut_off_is_not_evaluated(ended, tmp_path, capsys):
    out, weights = copy_of(ended, tmp_path), tmp_path / "out" / "model.safetensors"
    words = f"evaluate {out} {tmp_path / 'rows.jsonl'} --metric answer_nll --output_dir {tmp_path / 'scores'}".split()
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-100])
    assert main(words) == 2 and "bytes" in one_line(capsys.readouterr().err, "evaluate")
    weights.write_bytes(whole)  # those of an earlier run
    (out / "manifest.json").unlink()
    (out / ".export").mkdir()
    assert main(words) == 2
    line = one_line(capsys.readouterr().err, "evaluate")
    assert "writing it was interrupted" in line and "--resume_from_checkpoint true" in line


def test_the_checkpoint_of_another_run_does_not_open_a_folder(ended, tmp_path, capsys):
    """Nor is anything removed where it lies; in a folder of its own the run is resumed."""
    out = copy_of(ended, tmp_path)
    other = copy_of(ended, tmp_path / "other")
    shutil.copytree(other / "checkpoint-2", other / "checkpoint-best")
    before = files_of(out), files_of(other)
    named = ("--resume_from_checkpoint", other / "checkpoint-best")
    assert train(out, *CONSTANT, *named) == 2
    assert "the folder is not empty" in one_line(capsys.readouterr().err)
    assert train(tmp_path / "new", *CONSTANT, *named) == 0
    assert result_of(tmp_path / "new") == result_of(other)
    assert (files_of(out), files_of(other)) == before


def test_evaluations_of_an_earlier_model_are_not_reported_as_this_ones(ended, tmp_path, capsys):
    out, test, page = copy_of(ended, tmp_path), write(tmp_path / "test.jsonl", step_rows(4)), tmp_path / "page.html"
    evaluate = ["evaluate", "--model_name", str(out), "--test_file", test, "--metric", "answer_nll"]
    report = ["report", out, "--output_file", page, "--overwrite"]
    earlier = "evaluation-test: belongs to an earlier model in this folder"
    assert main(evaluate) == 0 and earlier not in printed(capsys, report) and "answer_nll" in page.read_text()
    assert resume(out, *CONSTANT, "--max_steps", STEPS + 2) == 0 and earlier in printed(capsys, report)
    assert main([*evaluate, "--overwrite_output_dir"]) == 0 and earlier not in printed(capsys, report)


def damage(path, how):
    data = path.read_bytes()
    if how == "lost":
        path.unlink()
    elif how == "cut":
        path.write_bytes(data[: len(data) // 2])
    else:
        path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])


def test_a_damaged_checkpoint_is_named_and_passed_over(killed, ended, capsys):
    damage(killed / "checkpoint-4" / "model.safetensors", "cut")
    assert resume(killed, *CONSTANT) == 0
    said = capsys.readouterr().out
    assert f"{killed}/checkpoint-4: model.safetensors " in said and "skipped" in said
    assert "resumed from checkpoint-2" in said and result_of(killed) == result_of(ended)


def test_a_checkpoint_of_version_0_2_is_resumed(killed, ended):
    (killed / "checkpoint-4" / "log_state_0.pt").write_bytes(b"the sums of the log, which nobody reads now")
    write_manifest(killed / "checkpoint-4")
    assert resume(killed, *CONSTANT) == 0 and result_of(killed) == result_of(ended)


def test_every_file_of_a_checkpoint_is_watched(killed):
    files = sorted((killed / "checkpoint-4").iterdir())
    assert len(files) > 10
    for number, path in enumerate(files):
        before = path.read_bytes()
        assert RunFolder(killed).checkpoint == path.parent
        damage(path, ["lost", "cut", "changed"][number % 3])
        assert RunFolder(killed).checkpoint == killed / "checkpoint-2", path.name
        path.write_bytes(before)


def test_without_a_good_checkpoint_nothing_starts(killed, capsys):
    good = {path: path.read_bytes() for path in killed.glob("checkpoint-*/optimizer.pt")}
    for how, word in (("lost", "missing"), ("cut", "bytes"), ("changed", "checksum")):
        for path, content in good.items():
            path.write_bytes(content)
            damage(path, how)
        for flags in ((), ("--resume_from_checkpoint", killed / "checkpoint-4")):
            line = refused(capsys, killed, *CONSTANT, *flags)
            assert "checkpoint-4: optimizer.pt" in line and word in line
    for folder in killed.glob("checkpoint-*"):
        (folder / "resume_record.json").write_text('{"settings": {}, "data": {}}')
        write_manifest(folder)
    assert "contents cannot be loaded (KeyError: 'cut')" in refused(capsys, killed, *CONSTANT), "of version 0.1 or 0.2"


def test_checkpoints_without_an_optimizer_are_refused(tmp_path, capsys):
    out = tmp_path / "out"
    assert train(out, "--max_steps", 2, "--save_only_model") == 0
    (out / "metrics.json").unlink()
    for flags in ((), ("--resume_from_checkpoint", out / "checkpoint-2")):
        assert "written with save_only_model" in refused(capsys, out, "--max_steps", 2, *flags)


def test_an_old_checkpoint_goes_only_after_the_manifest_of_the_new_one(tmp_path, monkeypatch):
    def killed(folder):
        assert (folder / "trainer_state.json").exists()
        if folder.name == "checkpoint-4":
            raise SystemExit(9)
        written(folder)

    written = saving.write_manifest
    monkeypatch.setattr(saving, "write_manifest", killed)
    assert train(tmp_path / "out", "--save_total_limit", 1) == 9
    assert (tmp_path / "out" / "checkpoint-2" / "optimizer.pt").exists()


def test_the_best_checkpoint_stays_and_is_the_final_model(tmp_path):
    (tmp_path / "whole").mkdir()
    out = tmp_path / "whole" / "out"
    best = "--eval_strategy steps --eval_steps 2 --load_best_model_at_end --metric_for_best_model eval_lm_loss".split()
    best += ["--greater_is_better", "true", "--eval_file", out.parent / "rows.jsonl", *CONSTANT]
    assert train(out, *best, "--save_total_limit", 2) == 0
    assert sorted(path.name for path in out.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-6"]
    folders = [out, out / "checkpoint-2", out / "checkpoint-6"]
    final, kept, last = ((folder / "model.safetensors").read_bytes() for folder in folders)
    assert final == kept != last
    killed = copy_of(out, tmp_path / "killed", killed_after=2)
    assert resume(killed, *best, "--save_total_limit", 2) == 0 and result_of(killed) == result_of(out)


def test_a_second_run_in_a_folder_is_refused_until_the_first_has_died(tmp_path, tokenizer, capsys):
    out = tmp_path / "out"
    assert train(out, "--eval_strategy", "epoch") == 2 and "needs --eval_file" in one_line(capsys.readouterr().err)
    assert not out.exists(), "a refused run leaves no folder"
    out.mkdir()
    ways = ((), ("--resume_from_checkpoint", "true"), ("--overwrite_output_dir",))
    with open(out / ".lock", "a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for flags in ways:
            assert train(out, *flags) == 2
            assert "another run is writing to this folder" in one_line(capsys.readouterr().err)
        trainer = trainer_for(tmp_path, tokenizer)
        with pytest.raises(ConfigError, match="another run is writing to this folder"):
            trainer.train()
        assert trainer.state.global_step == 0 and list(files_of(out)) == [".lock"]
    for flags in ways:
        (out / ".lock").touch()  # as the first left it
        assert train(out, "--max_steps", 1, *flags) == 0
        assert not (out / ".lock").exists()
