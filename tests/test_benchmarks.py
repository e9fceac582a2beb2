"""The benchmark script runs on generated rows and prints what it promises. Its figures are not tested."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import transformers

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
ARMS = ["regular", "jepa", "two_pass", "doubled"]

pytestmark = pytest.mark.slow


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a script with arguments in this process; what it prints."""
    verbosity = transformers.logging.get_verbosity()
    monkeypatch.syspath_prepend(str(BENCHMARKS))

    def run(script, *arguments):
        monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
        runpy.run_path(str(BENCHMARKS / script), run_name="__main__")
        return capsys.readouterr().out

    yield run
    transformers.logging.set_verbosity(verbosity)


TINY = "--model tiny --threads 1 --rows 8 --batch_size 2 --nl_rx absent.jsonl --gsm8k absent.jsonl".split()


def test_every_arm_is_in_the_table_and_in_the_json(run, tmp_path):
    file = tmp_path / "result.json"
    arguments = ["--arms", *ARMS, "--rounds", 1, "--steps", 1, "--prepare_rows", 8, "--skip_memory", "--json", file]
    printed = run("step_cost.py", *TINY, *arguments)
    assert printed.count("absent.jsonl is absent") == 2
    for words in ("packed JEPA / doubled row: ", "packed JEPA cost / regular: ", "data preparation, 8 rows: "):
        assert words in printed

    results = json.loads(file.read_text())
    assert set(results["data"]) == {"nl_rx", "gsm8k"}
    for result in results["data"].values():
        arms = result["arms"]
        assert list(arms) == ARMS and all(arm["examples_per_second"]["median"] > 0 for arm in arms.values())
        assert {line.split(" ")[0] for line in printed.splitlines()} >= {*ARMS}
        # Positions are counted, not timed: two rows of 512, and a forest between its chat and its two-pass form.
        regular, jepa, two_pass, doubled = (arms[name]["positions_per_example"] for name in ARMS)
        assert regular < jepa < two_pass < doubled == 1024
