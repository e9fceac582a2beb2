"""``stepjepa check`` through the entry point."""

import json

import pytest

from stepjepa.cli.main import main
from support.rows import write

ROW = {"question": "How many?", "answer": "First one.\n\nThen two."}
STEPS = {"question": "How many are they?", "answer": "First one.\n\nThen two.\n\nSo three."}
PAIR = {"question": "q", "answer": "a"}


@pytest.fixture
def data(tmp_path):
    return lambda *rows, name="data.jsonl": write(tmp_path / name, rows)


@pytest.fixture
def check(capsys):
    """What the command prints, which has no line that is too long; with ``--json`` its record."""

    def call(*words):
        assert main(["check", *words]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        if "--json" in words:
            return json.loads(out)
        assert all(len(line) <= 100 or len(line.split()) < 4 for line in out.splitlines())
        return " ".join(out.split())

    return call


def names(record):
    return [warning["name"] for warning in record["warnings"]]


def test_a_good_file(data, capsys):
    file = data(ROW, ROW)
    assert main(["check", file]) == 0
    lines = capsys.readouterr().out.splitlines()
    for line in (
        f"Format check: {file}",
        "  Rows: 2 read, 2 usable, 0 skipped",
        f"{file} line 1 (2 steps)",
        "    How many?",
        "    Then two.",
        "     2         2 rows  100.0%  ########################################",
    ):
        assert line in lines
    assert lines[-1] == "Verdict: ready for step_jepa: 2 of 2 rows have two or more steps"


def test_the_report_on_a_good_file_fits_on_a_screen(data, capsys):
    answers = ["\n\n".join(f"Step {n} adds a number." for n in range(steps)) for steps in (2, 3, 4, 5) * 3]
    file = data(*({"question": f"How many are {n}?", "answer": answer} for n, answer in enumerate(answers)))
    for words in ([], ["--model_name", "tiny", "--step_jepa"]):
        assert main(["check", file, *words]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) <= 30 and max(map(len, lines)) <= 100 and lines[-1].startswith("Verdict: ready")


def test_warnings(data, check):
    file, held_out = data(ROW, ROW), data(ROW, STEPS, name="test.jsonl")
    said = check(file, "--eval_file", held_out)
    assert (
        "Warnings: 2 1. 1 of 2 rows (50.0 %) repeat the question of an earlier one (first: line 1 and line 2)." in said
    )
    assert f"2. 1 of 2 rows (50.0 %) of {held_out} ask what a row of the training file asks" in said
    assert "Warnings: none" in check(data(STEPS))
    one = data(PAIR)
    assert names(check(one, "--json", "--objective", "llm_jepa")) == []  # steps are nothing to it
    assert names(check(one, "--json", "--step_jepa"))[0] == "one_step"


def test_what_a_model_will_see(data, check):
    file = data(ROW, STEPS, 3, {"question": "How " * 40, "answer": "One."})
    arguments = [file, "--model_name", "tiny", "--step_jepa", "--max_length", "40"]
    said = check(*arguments)
    for words in (
        "What a model will see: tokenizer tiny (",
        f"entries), step_jepa, K = 2, packed {file}: 4 rows read, 2 kept, 2 skipped, 2 pairs",
        "skipped 1: the prompt alone fills max_length (first: ",
        "end of turn: <|end|>",
        "1 of 4 rows (25.0 %) are cut or skipped at max_length 40",
    ):
        assert words in said
    report = check(*arguments, "--json")
    feeding = report["feeding"]
    assert feeding["data"]["rows_skipped"] == {"not_an_object": 1, "no_room_for_answer": 1}
    assert feeding["truncation"] == {**feeding["truncation"], "answers_cut": 0, "rows_without_room": 1}
    assert names(report) == ["truncated"]


def test_plain_text(data, check, capsys):
    file = data({"text": "One and two are three."}, {"input_ids": [5, 6, 7, 8]})
    said = check(file, "--model_name", "tiny")
    assert (
        "Verdict: plain text: train with --objective regular or split or next_latent or multi_token or future_summary"
        in said
    )
    assert f"entries), split, K = 1, packed {file}: 2 rows read, 2 kept, 0 skipped, 2 pairs" in said
    assert "entries), regular" in check(file, "--model_name", "tiny", "--regular")
    assert main(["check", file, "--model_name", "tiny", "--step_jepa"]) == 2
    assert "step_jepa needs chats" in capsys.readouterr().err


def test_the_splitter_is_that_of_training(data, check):
    lines = {"question": "How?", "answer": "We add two.\nWe stop here."}
    report = check(data(lines, lines, ROW), "--model_name", "tiny", "--step_jepa", "--json")
    assert report["splitter"] == "lines"
    assert report["feeding"]["data"]["pairs"] == report["pairs_first"] == 3
