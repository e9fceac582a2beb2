"""A checkpoint that is not as it was written is named and passed over, whatever is wrong with it."""

from __future__ import annotations

import json
import shutil

import pytest

from stepjepa.training import checkpoints as saving
from support.runs import files_of, one_line, result_of, resume, train

FLAGS = ("--lr_scheduler_type", "constant", "--max_steps", 5)  # checkpoints 2, 4 and 5


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run that has ended; tests take copies."""
    out = tmp_path_factory.mktemp("whole") / "out"
    assert train(out, *FLAGS) == 0
    return out


@pytest.fixture
def cut_off(finished, tmp_path):
    """What a kill after checkpoint-4 leaves of the run."""
    shutil.copytree(finished, tmp_path / "out")
    shutil.copy(finished.parent / "rows.jsonl", tmp_path)
    shutil.rmtree(tmp_path / "out" / "checkpoint-5")
    for name in ("model.safetensors", "metrics.json"):
        (tmp_path / "out" / name).unlink()
    return tmp_path / "out"


def damage(path, how):
    data = path.read_bytes()
    if how == "lost":
        path.unlink()
    elif how == "cut":
        path.write_bytes(data[: len(data) // 2])
    else:
        path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])


@pytest.mark.parametrize(
    ("name", "how"),
    [("optimizer.pt", "lost"), ("scheduler.pt", "lost"), ("model.safetensors", "cut"), ("rng_state.pth", "changed")],
)
def test_a_damaged_checkpoint_is_named_and_passed_over(cut_off, finished, capsys, name, how):
    damage(cut_off / "checkpoint-4" / name, how)
    assert resume(cut_off, *FLAGS) == 0
    said = capsys.readouterr().out
    assert f"{cut_off}/checkpoint-4: {name} " in said and "passed over" in said and "resumed from checkpoint-2" in said
    assert result_of(cut_off) == result_of(finished)


def test_every_file_of_a_checkpoint_is_watched(cut_off):
    from stepjepa.training.run_folder import RunFolder

    files = sorted((cut_off / "checkpoint-4").iterdir())
    assert len(files) > 10
    for number, path in enumerate(files):
        before = path.read_bytes()
        assert RunFolder(cut_off).checkpoint == path.parent
        damage(path, ["lost", "cut", "changed"][number % 3])
        assert RunFolder(cut_off).checkpoint == cut_off / "checkpoint-2", path.name
        path.write_bytes(before)


@pytest.mark.parametrize("how", ["lost", "cut", "changed"])
@pytest.mark.parametrize("wanted", ["true", "path"])
def test_without_a_good_checkpoint_nothing_starts(cut_off, capsys, how, wanted):
    for folder in cut_off.glob("checkpoint-*"):
        damage(folder / "optimizer.pt", how)
    before = files_of(cut_off)
    words = () if wanted == "true" else ("--resume_from_checkpoint", cut_off / "checkpoint-4")
    assert resume(cut_off, *FLAGS, *words) == 2
    line = one_line(capsys.readouterr().err)
    assert (
        "checkpoint-4: optimizer.pt" in line and {"lost": "missing", "cut": "bytes", "changed": "checksum"}[how] in line
    )
    assert files_of(cut_off) == before


def test_checkpoints_of_the_first_version_are_refused(cut_off, capsys):
    for folder in cut_off.glob("checkpoint-*"):
        (folder / "manifest.json").unlink()
        (folder / "log_state_0.pt").unlink()
    assert resume(cut_off, *FLAGS) == 2
    assert "written by version 0.1" in one_line(capsys.readouterr().err)


def test_checkpoints_without_an_optimizer_are_refused(tmp_path, capsys):
    out = tmp_path / "out"
    assert train(out, *FLAGS, "--save_only_model") == 0
    (out / "metrics.json").unlink()
    before = files_of(out)
    for words in ((), ("--resume_from_checkpoint", out / "checkpoint-2")):
        assert resume(out, *FLAGS, *words) == 2
        assert "written with save_only_model" in one_line(capsys.readouterr().err)
    assert files_of(out) == before


def test_an_old_checkpoint_goes_only_after_the_manifest_of_the_new_one(tmp_path, monkeypatch, capsys):
    class Killed(BaseException):
        pass

    def killed(folder):
        assert (folder / "trainer_state.json").exists()
        if folder.name == "checkpoint-4":
            raise Killed
        write(folder)

    write = saving.write_manifest
    monkeypatch.setattr(saving, "write_manifest", killed)
    with pytest.raises(Killed):
        train(tmp_path / "out", *FLAGS, "--save_total_limit", 1)
    assert (tmp_path / "out" / "checkpoint-2" / "optimizer.pt").exists()


def test_the_best_checkpoint_stays(tmp_path):
    out = tmp_path / "out"
    best = "--eval_strategy steps --eval_steps 2 --load_best_model_at_end --metric_for_best_model eval_lm_loss".split()
    rows = [*best, "--greater_is_better", "true", "--eval_file", tmp_path / "rows.jsonl"]
    assert train(out, "--max_steps", 6, *rows, "--save_total_limit", 2) == 0
    assert sorted(path.name for path in out.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-6"]
    state = json.loads((out / "checkpoint-6" / "trainer_state.json").read_text())
    assert state["best_global_step"] == 2
