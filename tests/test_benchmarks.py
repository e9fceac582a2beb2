"""The benchmark script runs on generated rows and prints what it promises. Its figures are not tested."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import transformers

from support.rows import gsm8k, write

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


@pytest.mark.long
def test_the_gpu_benchmark_is_rehearsed_on_cpu(run, tmp_path):
    """An arm that fails is a line, and the others go on; what is done is written after every arm."""
    file, page = tmp_path / "result.json", tmp_path / "table.txt"
    names = ["regular", "trl_best", "step_jepa", "doubled", "answers"]
    arguments = ["--preset", "tiny", "--device", "cpu", "--arm_seconds", 0, "--gsm8k", "absent.jsonl", "--arms", *names]
    run("gpu.py", *arguments, "--data", "gsm8k", "long", "--json", file, "--table", page)
    arms = json.loads(file.read_text())["data"]
    assert set(arms["gsm8k"]) == set(names)
    assert list(arms["long"]) == ["regular", "trl_best", "step_jepa"]
    faults = {name: figures["fault"] for data in arms.values() for name, figures in data.items() if "fault" in figures}
    assert not faults
    assert all(figures["tokens_per_second"]["median"] > 0 for data in arms.values() for figures in data.values())
    positions = {name: figures.get("positions_per_token") for name, figures in arms["gsm8k"].items()}
    assert positions["regular"] < positions["step_jepa"] < positions["doubled"]
    assert "regular / the fastest of TRL: " in page.read_text() and "long\n" in page.read_text()

    run("gpu.py", *arguments, "--arms", "regular", "answers", "--data", "gsm8k", "--limit", 0.01, "--table", page)
    assert page.read_text().count("stopped after 0 s") == 2


@pytest.mark.long
def test_every_way_to_generate_gives_the_same_tokens(run, tmp_path):
    file, questions = tmp_path / "result.json", tmp_path / "rows.jsonl"
    write(questions, [gsm8k(number) for number in range(6)])
    arguments = ["--model", "tiny", "--questions", questions, "--count", 6, "--batch_size", 4, "--max_new_tokens", 5]
    printed = run("generation.py", *arguments, "--json", file)
    arms = json.loads(file.read_text())["arms"]
    assert list(arms) == ["one call", "rounds", "continuous"] and all(name in printed for name in arms)
    assert all(arm["equal_answers"] == 6 and arm["tokens_per_second"]["median"] > 0 for arm in arms.values())


def lines_of(printed, section):
    """The first cell of each line of a section's table."""
    table = printed.split(f"\n{section} ")[1].split("\n\n")[0].splitlines()[2:]
    return [int(line.split()[0].replace(",", "")) for line in table]


@pytest.mark.long
def test_scale(run, tmp_path):
    file, sections = tmp_path / "result.json", ["length", "vocabulary", "predictors", "pairs", "collator"]
    printed = run("scale.py", "--quick", "--model", "micro", "--only", *sections, "--json", file)
    results = json.loads(file.read_text())
    assert list(results) == sections
    expected = {"length": [256, 1024], "vocabulary": [2048, 32768], "predictors": [0, 1], "pairs": [1, 2]}
    expected["collator"] = [4, 16]
    assert {section: lines_of(printed, section) for section in sections} == expected
    for section, lines in results.items():
        assert list(map(int, lines)) == expected[section]
        for figures in lines.values():
            plain, jepa = figures["seconds"]
            assert plain > 0 and figures["ratio"]["median"] == jepa / plain and len(figures["peak_mib"]) == 2
    # Logits of 1,000 positions and 32,768 entries, and four copies of the embedding: far more than the noise.
    small, large = results["vocabulary"].values()
    assert all(above > 2 * below for above, below in zip(large["peak_mib"], small["peak_mib"], strict=True))
