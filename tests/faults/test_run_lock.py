"""Two runs never write to one folder."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stepjepa.errors import ConfigError
from stepjepa.modeling.load import load_tokenizer
from support.rows import step_rows
from support.runs import files_of, one_line, train
from support.training import trainer_for

fcntl = pytest.importorskip("fcntl")

# Holds a lock file as a run does, until it is killed.
HOLDER = """
import fcntl, sys, time
file = open(sys.argv[1], "a")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def held(tmp_path):
    """A folder that a process works in, and the process."""
    (tmp_path / "out").mkdir()
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path / "out" / ".lock"], stdout=subprocess.PIPE)
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    yield tmp_path / "out", holder
    holder.kill()
    holder.wait()


@pytest.mark.parametrize("flags", [(), ("--resume_from_checkpoint", "true"), ("--overwrite_output_dir",)], ids=str)
def test_a_second_run_in_a_folder_is_refused_until_the_first_has_died(held, capsys, flags):
    out, holder = held
    assert train(out, *flags) == 2
    assert "another run is writing to this folder" in one_line(capsys.readouterr().err)
    assert list(files_of(out)) == [".lock"]
    holder.kill()
    holder.wait()
    assert (out / ".lock").exists(), "it left its lock"
    assert train(out, "--max_steps", 1, *flags) == 0
    assert not (out / ".lock").exists()


def test_the_python_trainer_keeps_to_the_lock(held, tmp_path):
    tokenizer = load_tokenizer("tiny", (m["content"] for row in step_rows(20) for m in row["messages"]))
    trainer = trainer_for(tmp_path, tokenizer)
    with pytest.raises(ConfigError, match="another run is writing to this folder"):
        trainer.train()
    assert trainer.state.global_step == 0


def test_a_refused_run_leaves_no_folder_behind(tmp_path, capsys):
    assert train(tmp_path / "out", "--eval_strategy", "epoch") == 2
    assert "needs --eval_file" in one_line(capsys.readouterr().err)
    assert not (tmp_path / "out").exists()
