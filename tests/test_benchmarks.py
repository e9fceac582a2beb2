"""The benchmark script runs on generated rows and prints what it promises. Its figures are not tested."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
ARMS = ["regular", "jepa", "two_pass", "doubled"]

pytestmark = pytest.mark.slow


def run(*arguments: object, script: str = "step_cost.py") -> str:
    command = [sys.executable, str(BENCHMARKS / script), "--model", "tiny", "--threads", "1", "--rows", "8"]
    command += ["--batch_size", "2", "--nl_rx", "absent.jsonl", "--gsm8k", "absent.jsonl", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_arm_is_in_the_table_and_in_the_json(tmp_path):
    file = tmp_path / "result.json"
    arguments = ["--arms", *ARMS, "--rounds", 1, "--steps", 1, "--prepare_rows", 8, "--skip_memory", "--json", file]
    printed = run(*arguments)
    assert printed.count("absent.jsonl is absent") == 2
    assert "packed JEPA / doubled row: " in printed
    assert "packed JEPA cost / regular: " in printed
    assert "data preparation, 8 rows: " in printed

    results = json.loads(file.read_text())
    assert set(results["data"]) == {"nl_rx", "gsm8k"}
    for result in results["data"].values():
        arms = result["arms"]
        assert list(arms) == ARMS
        for name in ARMS:
            assert any(line.startswith(f"{name} ") for line in printed.splitlines())
            assert arms[name]["examples_per_second"]["median"] > 0
        # Positions are counted, not timed: two rows of 512, and a forest between its chat and its two-pass form.
        positions = {name: arms[name]["positions_per_example"] for name in ARMS}
        assert positions["doubled"] == 1024
        assert positions["regular"] < positions["jepa"] < positions["two_pass"] < positions["doubled"]


def test_peak_memory_of_one_arm():
    printed = run("--arms", "regular", "--data", "nl_rx", "--memory", "regular")
    assert json.loads(printed.splitlines()[-1])["peak_mib"] > 0


def test_objectives(tmp_path):
    file = tmp_path / "result.json"
    arms = ["step all", "semantic tube", "split"]
    printed = run("--rounds", 1, "--steps", 1, "--arms", *arms, "--json", file, script="objectives.py")
    results = json.loads(file.read_text())
    assert list(results) == ["regular", *arms]
    assert all(any(line.startswith(f"{name} ") for line in printed.splitlines()) for name in results)
    assert results["regular"]["flops"] == 1 and results["step all"]["flops"] > 1.1
    assert all(result["time"]["median"] > 0 for result in results.values())


@pytest.mark.long
def test_encoding_and_streaming():
    command = [
        sys.executable,
        str(BENCHMARKS / "encode_speed.py"),
        "--gsm8k",
        "absent.jsonl",
        "--rounds",
        "1",
        "--rows",
        "40",
    ]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert "encode_dataset " in done.stdout and "cached start " in done.stdout
    command = [sys.executable, str(BENCHMARKS / "streaming_memory.py"), "--gib", "0.0002", "--steps", "1"]
    command += ["--shuffle_buffer", "20", "--whole_rows", "10"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()[1:]] == ["train", "read", "whole"]
    assert done.stdout.count("peak") == 3
