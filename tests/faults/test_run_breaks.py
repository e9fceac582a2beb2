"""A loss that is not finite, a full disk, too little memory: one line, and the last good checkpoint can be resumed."""

import errno
import json
import math
from contextlib import contextmanager

import pytest
import torch

from stepjepa.training.trainer import JEPATrainer
from support.runs import CONSTANT, copy_of, one_line, result_of, resume, train

resource = pytest.importorskip("resource")


@pytest.fixture
def at_step(monkeypatch):
    """At a step, a function of the loss takes its place."""
    real = JEPATrainer.compute_loss

    def prepare(step, change):
        def compute_loss(self, model, inputs, *args, **kwargs):
            loss = real(self, model, inputs, *args, **kwargs)
            return change(loss) if self.state.global_step + 1 == step else loss

        monkeypatch.setattr(JEPATrainer, "compute_loss", compute_loss)

    return prepare


def becomes(value, with_gradient=True):
    return lambda loss: loss * value if with_gradient else loss + (value - loss.detach())


def raises(error):
    def change(loss):
        raise error

    return change


def checkpoints_of(out):
    return sorted(path.name for path in out.glob("checkpoint-*"))


def test_a_run_that_breaks_keeps_its_last_good_checkpoint(tmp_path, capsys, at_step):
    """One at a checkpoint, one that is not logged, the last step; infinite with finite gradients, too."""
    out, begin = tmp_path / "out", train
    for step, value, with_gradient, logged, kept in [
        (4, math.nan, True, 100, 2),
        (5, math.nan, True, 1, 4),
        (5, math.inf, False, 100, 4),
        (6, math.nan, True, 100, 4),
        (6, -math.inf, False, 3, 4),
    ]:
        at_step(step, becomes(value, with_gradient))
        assert begin(out, "--save_total_limit", 1, "--logging_steps", logged) == 1
        line, begin = one_line(capsys.readouterr().err), resume
        assert f"step {step}: the loss is not finite" in line
        assert f"last good checkpoint: {out}/checkpoint-{kept}" in line
        assert checkpoints_of(out) == [f"checkpoint-{kept}"]
        assert not (out / "model.safetensors").exists() and not (out / "metrics.json").exists()
    at_step(0, becomes(1.0))  # nothing breaks
    assert resume(out, "--save_total_limit", 1) == 0


def test_weights_that_break_are_not_saved(tmp_path, capsys, at_step):
    """In the last step, after which no loss is computed; where it is logged, its gradient shows it."""

    def breaks(loss):
        loss.register_hook(lambda gradient: gradient * math.nan)
        return loss

    at_step(6, breaks)
    for logged, what in ((100, "weights are"), (1, "gradient norm is")):
        out = tmp_path / f"logged_{logged}"
        assert train(out, "--save_strategy", "no", "--logging_steps", logged) == 1
        assert f"step 6: the {what} not finite" in one_line(capsys.readouterr().err)
        assert not (out / "model.safetensors").exists()


def test_a_run_may_continue_and_its_records_say_null(tmp_path, capsys, caplog, at_step):
    at_step(3, becomes(math.inf, with_gradient=False))
    out = tmp_path / "out"
    assert train(out, "--terminate_on_nan", "false") == 0
    assert "step 3: the loss is not finite" in caplog.text and capsys.readouterr().out.count("done   6 steps") == 1
    text = (out / "metrics.json").read_text()
    assert "NaN" not in text and "Infinity" not in text
    record = json.loads(text)
    entries = {entry["step"]: entry for entry in record["log_history"] if "loss" in entry}
    assert entries[3]["loss"] is None and all(entries[step]["loss"] is not None for step in (1, 2))
    assert all(entry["lm_loss"] > 0 for entry in entries.values())
    assert record["metrics"]["train_loss"] is None
    expected = result_of(out)
    (out / "metrics.json").unlink()
    assert resume(out, "--terminate_on_nan", "false") == 0 and result_of(out)["weights"] == expected["weights"]


def test_weights_that_are_not_finite_are_never_a_checkpoint(tmp_path, caplog, at_step):
    at_step(3, becomes(math.nan))
    assert train(tmp_path / "out", "--terminate_on_nan", "false", "--save_total_limit", 1) == 0
    assert checkpoints_of(tmp_path / "out") == ["checkpoint-2"] and "checkpoint-4 is not written" in caplog.text


@contextmanager
def files_of_at_most(size):
    """The system refuses to write more to a file than this."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# The weights have 1.4 MB, the optimizer's state 2.9 MB.
@pytest.mark.parametrize(
    ("size", "flags"), [(1 << 20, ()), (2 << 20, ()), (1 << 20, ("--save_strategy", "no"))], ids=str
)
def test_a_full_disk_is_one_line_and_the_run_is_resumed_later(tmp_path, capsys, ended, size, flags):
    out = tmp_path / "out"
    with files_of_at_most(size):
        assert train(out, *CONSTANT, *flags) == 1
    line = one_line(capsys.readouterr().err)
    what = out if flags else out / "checkpoint-2"
    assert f"{what}: could not be written (" in line and "--resume_from_checkpoint true" in line
    assert not (out / "checkpoint-2").exists(), "it would keep the disk full"
    assert resume(out, *CONSTANT, *flags) == 0 and result_of(out)["weights"] == result_of(ended)["weights"]


OUT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore lines"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"),
    MemoryError(),
    OSError(errno.ENOMEM, "Cannot allocate memory", "model.bin"),
]


def test_too_little_memory_is_one_line_and_the_run_is_resumed_later(tmp_path, capsys, at_step, ended):
    out = copy_of(ended, tmp_path, killed_after=4)
    for error in OUT_OF_MEMORY:
        at_step(5, raises(error))
        assert resume(out, *CONSTANT) == 1
        line = one_line(capsys.readouterr().err)
        what = f"out of memory ({str(error)[:20] or 'MemoryError)'}"
        for words in (what, "--per_device_train_batch_size", "--resume_from_checkpoint true"):
            assert words in line
    at_step(5, raises(RuntimeError("a bug")))  # is not taken for one of these
    with pytest.raises(RuntimeError, match="a bug"):
        resume(out, *CONSTANT)
    at_step(0, becomes(1.0))
    assert resume(out, *CONSTANT) == 0 and result_of(out) == result_of(ended)
