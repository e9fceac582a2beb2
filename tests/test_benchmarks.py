"""The benchmark scripts run on generated rows and write what they promise. Their figures are not tested."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import transformers

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"

pytestmark = pytest.mark.slow


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run a script with arguments in this process; what it writes with --json."""
    verbosity = transformers.logging.get_verbosity()
    monkeypatch.syspath_prepend(str(BENCHMARKS))

    def run(script, *arguments):
        file = tmp_path / "result.json"
        monkeypatch.setattr(sys, "argv", [script, *map(str, arguments), "--json", str(file)])
        runpy.run_path(str(BENCHMARKS / script), run_name="__main__")
        return json.loads(file.read_text())

    yield run
    transformers.logging.set_verbosity(verbosity)


def test_the_cost_of_a_step(run):
    """Positions are counted, not timed: two rows of 512, and a forest between its chat and its two-pass form."""
    names = ["regular", "jepa", "two_pass", "doubled"]
    tiny = "--model tiny --threads 1 --rows 8 --batch_size 2 --nl_rx absent.jsonl --gsm8k absent.jsonl".split()
    arguments = ["--arms", *names, "--rounds", 1, "--steps", 1, "--prepare_rows", 8, "--skip_memory"]
    results = run("step_cost.py", *tiny, *arguments)
    assert set(results["data"]) == {"nl_rx", "gsm8k"}
    for result in results["data"].values():
        arms = result["arms"]
        assert list(arms) == names and all(arm["examples_per_second"]["median"] > 0 for arm in arms.values())
        regular, jepa, two_pass, doubled = (arms[name]["positions_per_example"] for name in names)
        assert regular < jepa < two_pass < doubled == 1024


@pytest.mark.long
def test_the_gpu_benchmark_is_rehearsed_on_cpu(run, tmp_path):
    page = tmp_path / "table.txt"
    names = ["regular", "trl_best", "step_jepa", "doubled", "answers"]
    arguments = ["--preset", "tiny", "--device", "cpu", "--arm_seconds", 0, "--gsm8k", "absent.jsonl", "--arms", *names]
    arms = run("gpu.py", *arguments, "--data", "gsm8k", "long", "--table", page)["data"]
    assert set(arms["gsm8k"]) == set(names) and list(arms["long"]) == ["regular", "trl_best", "step_jepa"]
    assert all(figures["tokens_per_second"]["median"] > 0 for data in arms.values() for figures in data.values())
    assert "regular / the fastest of TRL: " in page.read_text()
