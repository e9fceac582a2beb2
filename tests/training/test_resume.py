"""A run that is killed and goes on ends with the weights of a run that was not, bit for bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from stepjepa.training.run_folder import RunFolder
from stepjepa.training.saving import missing_weights
from stepjepa.utils.files import write_manifest
from support.rows import step_rows

FLAGS = (
    "--model_name tiny --step_jepa --step_pairs all --lbd 0.5 --jepa_ratio 0.6 --num_epochs 3 --batch_size 2 "
    "--grad_accum 2 --save_steps 4 --save_total_limit 2 --logging_steps 1 --disable_tqdm true --seed 5 "
)


def start(output: Path, data: Path, *flags: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "stepjepa", "train", "--train_file", str(data), "--output_dir", str(output)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*command, *FLAGS.split(), *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def finish(process: subprocess.Popen) -> str:
    out, err = process.communicate(timeout=180)
    assert process.returncode == 0, err[-3000:]
    return out + err


def kill_after_checkpoint(process: subprocess.Popen, output: Path) -> Path:
    """SIGKILL while training goes on behind the first checkpoint."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        found = RunFolder(output).checkpoint
        if found is not None:
            process.send_signal(signal.SIGKILL)
            process.wait()
            return found
        assert process.poll() is None, process.communicate()[1][-3000:]
        time.sleep(0.005)
    raise AssertionError("no checkpoint in time")


STREAMED = (
    "--streaming",
    "--shuffle_buffer",
    "12",
    "--max_steps",
    "24",
    "--train_sampling_strategy",
    "group_by_length",
)


# A kill at every file operation, without processes, is in tests/faults/kill.py.
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param((), marks=pytest.mark.long),
        pytest.param(("--lora", "--lora_rank", "4"), marks=pytest.mark.long),
        STREAMED,
    ],
    ids=["full", "lora_dropout", "streamed"],
)
def test_killed_and_resumed_equals_uninterrupted(tmp_path, flags):
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in step_rows(30)))
    whole = start(tmp_path / "whole", data, *flags)
    killed = start(tmp_path / "killed", data, *flags)
    kill_after_checkpoint(killed, tmp_path / "killed")
    assert not (tmp_path / "killed" / "model.safetensors").exists(), "the run had ended before it was killed"
    finish(whole)
    output = finish(start(tmp_path / "killed", data, *flags, "--resume_from_checkpoint", "true"))
    assert "resumed from checkpoint-" in output and "missing keys" not in output  # a tied head is saved once
    expected = (tmp_path / "whole" / "model.safetensors").read_bytes()
    assert (tmp_path / "killed" / "model.safetensors").read_bytes() == expected


def test_a_half_written_checkpoint_is_passed_over(tmp_path):
    for step in (2, 10, 12):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"x")
        if step < 12:
            (folder / "log_state_0.pt").write_bytes(b"x")
            (folder / "trainer_state.json").write_text("{}")
            (folder / "resume_record.json").write_text("{}")
    write_manifest(tmp_path / "checkpoint-2")
    (tmp_path / "checkpoint-best").mkdir()
    found, passed = RunFolder(tmp_path).newest()
    assert found == tmp_path / "checkpoint-2"
    assert [line.partition(":")[0].rpartition("-")[2] for line in passed] == ["12", "10"]
    assert all("cut short by a kill" in line for line in passed)
    assert RunFolder(tmp_path / "missing").newest() == (None, [])
    (tmp_path / "checkpoint-2" / "manifest.json").unlink()
    assert RunFolder(tmp_path).newest()[0] is None


def test_only_weights_that_nothing_holds_are_missing():
    model = torch.nn.ModuleDict({name: torch.nn.Linear(2, 2, bias=False) for name in "abc"})
    model["b"].weight = model["a"].weight
    assert missing_weights(model, ["b.weight", "c.weight", "other"]) == ["c.weight", "other"]
    assert missing_weights(model, ["a.weight", "b.weight"]) == ["a.weight", "b.weight"]
