"""A full disk or too little memory is one line, and the run can go on; what is logged then covers the whole run."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import contextmanager

import pytest
import torch

from stepjepa.cli.main import main
from stepjepa.training.trainer import JEPATrainer
from support.runs import files_of, one_line, result_of, resume, train

resource = pytest.importorskip("resource")
CONSTANT = ("--lr_scheduler_type", "constant")


@contextmanager
def files_of_at_most(size):
    """The system refuses to write more to a file than this."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "out"
    assert train(out, *CONSTANT) == 0
    return out


# The weights have 1.4 MB, the optimizer's state 2.9 MB.
@pytest.mark.parametrize(
    ("size", "flags"), [(1 << 20, ()), (2 << 20, ()), (1 << 20, ("--save_strategy", "no"))], ids=str
)
def test_a_full_disk_is_one_line_and_the_run_goes_on_later(tmp_path, capsys, finished, size, flags):
    out = tmp_path / "out"
    with files_of_at_most(size):
        status = train(out, *CONSTANT, *flags)
    assert status == 1
    line = one_line(capsys.readouterr().err)
    what = out if flags else out / "checkpoint-2"
    assert f"{what}: could not be written (" in line and "--resume_from_checkpoint true" in line
    assert not (out / "checkpoint-2").exists(), "it would keep the disk full"
    assert resume(out, *CONSTANT, *flags) == 0
    assert result_of(out)["weights"] == result_of(finished)["weights"]


def fails_at(monkeypatch, step, error):
    real = JEPATrainer.compute_loss

    def compute_loss(self, *args, **kwargs):
        if self.state.global_step + 1 == step:
            raise error
        return real(self, *args, **kwargs)

    monkeypatch.setattr(JEPATrainer, "compute_loss", compute_loss)


OUT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore lines"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"),
    MemoryError(),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=lambda error: type(error).__name__)
def test_too_little_memory_is_one_line_and_the_run_goes_on_later(tmp_path, capsys, monkeypatch, finished, error):
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        fails_at(patch, 5, error)
        assert train(out, *CONSTANT) == 1
    line = one_line(capsys.readouterr().err)
    assert (
        "out of memory" in line and "--per_device_train_batch_size" in line and "--resume_from_checkpoint true" in line
    )
    assert resume(out, *CONSTANT) == 0
    assert result_of(out) == result_of(finished)


def test_other_errors_are_not_taken_for_these(tmp_path, monkeypatch):
    fails_at(monkeypatch, 2, RuntimeError("a bug"))
    with pytest.raises(RuntimeError, match="a bug"):
        train(tmp_path / "out")


@pytest.mark.parametrize("error", [OUT_OF_MEMORY[1], OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "numbers.json")])
@pytest.mark.parametrize("command", ["analyze", "study"])
def test_analyze_and_study(tmp_path, capsys, monkeypatch, command, error):
    def fail(*args, **kwargs):
        raise error

    from stepjepa.analysis import run as analysis
    from stepjepa.study import run

    (tmp_path / "rows.jsonl").write_text("{}\n")
    (tmp_path / "study.yaml").write_text(
        f"output_dir: {tmp_path}/out\ndata: {{builtin: {{train_rows: 8, select_rows: 4, test_rows: 4}}}}\n"
        "arms: {regular: {objective: regular}}\nbase: {model_name: tiny, max_steps: 1}\nmetrics: [answer_nll]\nseeds: [1]\n"
    )
    monkeypatch.setattr(analysis, "collect_all", fail)
    monkeypatch.setattr(run.StudyRun, "carry_out", fail)
    file = tmp_path / ("rows.jsonl" if command == "analyze" else "study.yaml")
    assert main([command, str(file), *(["--models", "tiny"] if command == "analyze" else [])]) == 1
    line = one_line(capsys.readouterr().err, command)
    expected = "numbers.json: could not be written (No space left" if isinstance(error, OSError) else "out of memory"
    assert expected in line and "start the same command again" in line


LOGGED = {
    "between entries": ("--logging_steps", 3, "--track_flop"),
    "at an epoch's end": (
        "--logging_strategy",
        "epoch",
        "--eval_strategy",
        "epoch",
        "--max_steps",
        -1,
        "--num_train_epochs",
        2,
    ),
    "streaming": ("--logging_steps", 4, "--streaming", "--shuffle_buffer", 8),
}


@pytest.mark.parametrize("kind", LOGGED)
def test_the_log_of_a_run_that_went_on_is_that_of_the_whole_run(tmp_path, kind):
    out = tmp_path / "out"
    flags = [*CONSTANT, "--save_steps", 1, *LOGGED[kind]]
    flags += ["--eval_file", tmp_path / "rows.jsonl"] if "--eval_strategy" in flags else []
    assert train(out, *flags) == 0
    expected = result_of(out)
    assert expected["metrics"]["train_loss"] > 1
    last = expected["log"][-1]["step"]
    for step in (2, 5, last) if kind == "at an epoch's end" else (2, last):
        again = tmp_path / f"again-{step}" / "out"
        shutil.copytree(out, again)
        shutil.copy(tmp_path / "rows.jsonl", again.parent)
        for number in range(step + 1, last + 1):
            shutil.rmtree(again / f"checkpoint-{number}")
        for name in ("metrics.json", "model.safetensors"):
            (again / name).unlink()
        words = ["--eval_file", again.parent / "rows.jsonl"] if "--eval_strategy" in flags else []
        assert resume(again, *flags, *words) == 0
        assert result_of(again) == expected, step
    assert files_of(out / f"checkpoint-{last}")
