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
        f"{file} line 1",
        "  Roles: user, assistant",
        "    How many?",
        "    Then two.",
        "  Total steps: 2",
        "     2         2 rows  100.0%  ########################################",
        "Verdict: ready for step_jepa: 2 of 2 rows have two or more steps",
    ):
        assert line in lines


def test_options(data, check):
    file = data({"question": "q", "answer": "a\nb"}, ROW, 3)
    assert "Verdict: ready for step_jepa: 2 of 2" in check("--step_splitter", "lines", file)
    assert "only" not in check(file, "--step_separator", "\\n")


def test_json(data, check):
    report = check("--json", data(ROW, 3))
    assert report["rows_usable"] == 1
    assert report["rows_skipped"] == {"not_an_object": 1}
    assert report["ready_for_step_jepa"] is True
    assert names(report) == []
    assert "feeding" not in report


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


def test_options_without_effect(data, check):
    file = data(ROW)
    said = check(file, "--predictors", "3")
    assert "Note: --predictors has no effect without --model_name" in said
    said = check(file, "--model_name", "tiny", "--step_pairs", "all", "--step_splitter", "lines")
    assert "Note: --step_pairs has no effect with objective llm_jepa" in said
    assert "--step_splitter has no effect" not in said  # the format check reads it


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        ([], "", "empty"),
        ([{"a": 1}], "", "none of 1 rows can be used"),
        ([PAIR, 3], "--strict_data", "line 2: the row is a int"),
        ([PAIR], "--step_splitter line", "did you mean 'lines'"),
        ([PAIR], "--step_separator=", "step_separator is empty"),
        ([PAIR], "--splitter lines", "unknown flag --splitter"),
        ([PAIR], "other.jsonl", "unexpected argument"),
        ([PAIR], "--model_name tinny", "did you mean tiny"),
        ([PAIR], "--eval_file nowhere.jsonl", "nowhere.jsonl: no such file"),
        ([PAIR], "--num_proc 0", "num_proc is 0"),
        ([PAIR], "--show 2", "stepjepa inspect FILE --row N shows a row"),
        ([PAIR], "--per_device_train_batch_size 4", "check reports no padding"),
        ([PAIR], "--step_splitter regex", "needs a pattern"),
        ([PAIR], "--source_column question", "go together"),
        ([PAIR], "--model_name tiny --max_length 2", "none of 1 rows can be used"),
    ],
)
def test_what_cannot_be_used(data, capsys, rows, options, words):
    assert main(["check", data(*rows), *options.split()]) == 2
    out, err = capsys.readouterr()
    assert out == "" and words in err
    assert err.startswith("stepjepa check: error: ") and err.count("\n") == 1


def test_files_that_are_not_there_or_broken(tmp_path, capsys):
    (tmp_path / "train.jsonl").write_text(json.dumps(PAIR) + '\n{"question"\n')
    broken, near = str(tmp_path / "train.jsonl"), str(tmp_path / "trian.jsonl")
    for words, said in (([broken], "line 2: broken JSON"), ([near], "did you mean"), ([], "stepjepa check FILE")):
        assert main(["check", *words]) == 2
        assert said in capsys.readouterr().err
