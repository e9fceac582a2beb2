"""``stepjepa check`` through the entry point."""

import json
import subprocess
import sys
from typing import get_args, get_type_hints

import pytest

from stepjepa.cli.check import CheckOptions
from stepjepa.cli.main import main
from stepjepa.config.parser import StrictParser, positional_argument
from stepjepa.inspect.check.report import folded
from stepjepa.training.options import JEPAOptions

ROW = {"question": "How many?", "answer": "First one.\n\nThen two."}
STEPS = {"question": "How many are they?", "answer": "First one.\n\nThen two.\n\nSo three."}


@pytest.fixture
def data(tmp_path):
    def write(*rows, name="data.jsonl"):
        file = tmp_path / name
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return str(file)

    return write


def test_a_good_file(data, capsys):
    file = data(ROW, ROW)
    assert main(["check", file]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for line in (
        f"Format check: {file}",
        "  Rows: 2 read, 2 usable, 0 skipped",
        f"{file} line 1",
        "  Roles: user, assistant",
        "    How many?",
        "    Then two.",
        "  Total steps: 2",
        "    2          2 rows 100.0 %  ########################################",
        "Verdict: ready for step_jepa: 2 of 2 rows have two or more steps",
    ):
        assert line in out.splitlines()


def test_options(data, capsys):
    file = data({"question": "q", "answer": "a\nb"}, ROW, 3)
    assert main(["check", "--step_splitter", "lines", "--show", "2", file]) == 0
    out = capsys.readouterr().out
    assert "Verdict: ready for step_jepa: 2 of 2" in out
    assert out.count("Total messages: 2") == 2
    assert main(["check", file, "--step_separator", "<STEP>", "--show", "0"]) == 0
    out = capsys.readouterr().out
    assert "Total messages" not in out
    said = " ".join(out.split())
    assert "splitter 'separator' (<STEP>); the splitter that auto chooses" in said


def test_json(data, capsys):
    assert main(["check", "--json", data(ROW, 3)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["rows_usable"] == 1
    assert report["rows_skipped"] == {"not_an_object": 1}
    assert report["ready_for_step_jepa"] is True
    assert [caution["name"] for caution in report["warnings"]] == ["no_system_prompt"]
    assert "feeding" not in report


def test_warnings(data, capsys):
    file = data(ROW, ROW)
    held_out = data(ROW, STEPS, name="test.jsonl")
    assert main(["check", file, "--eval_file", held_out]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Warnings: 3 1. No row of 2 has a system message." in said
    assert "2. 1 of 2 rows (50.0 %) repeat the question of an earlier one, 1 of them with the same answer" in said
    assert f"3. 1 of 2 rows (50.0 %) of {held_out} ask what a row of the training file asks" in said
    assert main(["check", data(STEPS), "--system_prompt", "Be brief."]) == 0
    assert "Warnings: none" in capsys.readouterr().out
    one = data({"question": "q", "answer": "a"})
    assert main(["check", one, "--json", "--objective", "llm_jepa"]) == 0
    names = [caution["name"] for caution in json.loads(capsys.readouterr().out)["warnings"]]
    assert names == ["no_system_prompt"]  # steps are nothing to llm_jepa
    assert main(["check", one, "--json", "--step_jepa"]) == 0
    assert json.loads(capsys.readouterr().out)["warnings"][0]["name"] == "one_step"


def test_what_a_model_will_see(data, capsys):
    file = data(ROW, STEPS, 3, {"question": "How " * 40, "answer": "One."})
    arguments = ["check", file, "--model_name", "tiny", "--step_jepa", "--max_length", "40", "--batch_size", "2"]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert all(len(line) <= 100 or len(line.split()) < 4 for line in out.splitlines())
    said = " ".join(out.split())
    for words in (
        "What a model will see: tokenizer tiny (",
        "entries), step_jepa, K = 2, packed Rows: 4 read, 2 kept, 2 skipped",
        "skipped 1: the row is no object with columns (as above)",
        "skipped 1: the prompt alone fills max_length (first: ",
        "Pairs: 2 in 2 of 2 examples (100.0 %)",
        "End of turn: <|end|>, which is the tokenizer's EOS token; labelled",
        "Positions in a batch of 2 (mean of 1 batch): padded to max_length 40 the longest",
        "1 of 4 rows (25.0 %) are cut or skipped at max_length 40",
    ):
        assert words in said
    assert main([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    feeding = report["feeding"]
    assert feeding["data"]["rows_skipped"] == {"not_an_object": 1, "no_room_for_answer": 1}
    assert feeding["padding"]["fixed_views"] == 6 * 40  # two chats, two sources, two targets
    assert feeding["segments"]["predictors"] == 4
    assert {"no_system_prompt", "truncated"} <= {caution["name"] for caution in report["warnings"]}


@pytest.mark.parametrize(
    "options",
    [
        ["--regular"],
        ["--step_jepa", "--forward", "two_pass"],
        ["--step_jepa", "--forward", "inline", "--same_predictor"],
        ["--step_jepa", "--step_pairs", "random", "--jepa_ratio", "0.5", "--target_encoder", "ema"],
        ["--objective", "semantic_tube"],
        ["--objective", "split", "--plain"],
        ["--front_pred", "--predictors", "1", "--reverse_pred"],
    ],
)
def test_every_form(data, capsys, options):
    file = data(*[STEPS, ROW] * 5)
    assert main(["check", file, "--model_name", "tiny", "--json", *options]) == 0
    feeding = json.loads(capsys.readouterr().out)["feeding"]
    assert feeding["padding"]["packed"] >= feeding["padding"]["tokens"] > 0
    assert (feeding["data"]["pairs"] == 0) == (options == ["--regular"])


def test_plain_text(data, capsys):
    file = data({"text": "One and two are three."}, {"input_ids": [5, 6, 7, 8]})
    assert main(["check", file]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Plain text: 1 row, 22 characters Token ids: 1 row, 4 ids" in said
    assert "Verdict: plain text: train with --objective split or regular" in said
    assert main(["check", file, "--model_name", "tiny"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "entries), split, K = 1, packed Rows: 2 read, 2 kept as 2 examples" in said
    assert "texts and views, a row each" in said
    assert main(["check", file, "--model_name", "tiny", "--regular"]) == 0
    assert "entries), regular" in capsys.readouterr().out
    assert main(["check", file, "--model_name", "tiny", "--step_jepa"]) == 2
    assert "step_jepa needs chats" in capsys.readouterr().err


def test_named_columns(data, capsys):
    file = data({"sentence": "It is red.", "texts": ["a sky", "a rose"], "right": 1})
    columns = ["--source_column", "sentence", "--target_column", "texts", "--choice_column", "right"]
    assert main(["check", file, "--model_name", "tiny", *columns]) == 0
    out = capsys.readouterr().out
    assert "    a rose" in out and "Pairs: 1 in 1 of 1 example" in out


def test_steps_in_a_column(data, capsys):
    file = data({"question": "How?", "parts": ["We add.", "We stop."]})
    options = ["--step_splitter", "list", "--steps_column", "parts", "--step_jepa", "--model_name", "tiny", "--json"]
    assert main(["check", file, *options]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["step_counts"] == {"2": 1}
    assert report["feeding"]["coverage"]["in_views"] == report["feeding"]["coverage"]["answer_tokens"] > 0


def test_the_splitter_is_that_of_training(data, capsys):
    lines = {"question": "How?", "answer": "We add two.\nWe stop here."}
    assert main(["check", data(lines, lines, ROW), "--model_name", "tiny", "--step_jepa", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["splitter"] == "lines"
    assert report["feeding"]["data"]["pairs"] == report["pairs_first"] == 3


def test_options_without_effect(data, capsys):
    file = data(ROW)
    assert main(["check", file, "--predictors", "3", "--batch_size", "4"]) == 0
    out = capsys.readouterr().out
    for name in ("predictors", "per_device_train_batch_size"):
        assert f"Note: --{name} has no effect without --model_name" in out
    assert main(["check", file, "--model_name", "tiny", "--step_pairs", "all", "--step_splitter", "lines"]) == 0
    out = capsys.readouterr().out
    assert "Note: --step_pairs has no effect with objective llm_jepa" in out
    assert "--step_splitter has no effect" not in out  # the format check reads it


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        ("", [], "empty"),
        ('{"a": 1}\n', [], "none of 1 rows can be used"),
        ('{"question": "q", "answer": "a"}\n{"question"\n', [], "line 2: broken JSON"),
        ('{"question": "q", "answer": "a"}\n3\n', ["--strict_data"], "line 2: the row is a int"),
        ('{"question": "q", "answer": "a"}\n', ["--step_splitter", "line"], "did you mean 'lines'"),
        ('{"question": "q", "answer": "a"}\n', ["--step_separator", ""], "step_separator is empty"),
        ('{"question": "q", "answer": "a"}\n', ["--splitter", "lines"], "unknown flag --splitter"),
        ('{"question": "q", "answer": "a"}\n', ["other.jsonl"], "unexpected argument"),
        ('{"question": "q", "answer": "a"}\n', ["--model_name", "tinny"], "did you mean tiny"),
        ('{"question": "q", "answer": "a"}\n', ["--eval_file", "nowhere.jsonl"], "nowhere.jsonl: no such file"),
        ('{"question": "q", "answer": "a"}\n', ["--batch_size", "0"], "per_device_train_batch_size is 0"),
        ('{"question": "q", "answer": "a"}\n', ["--show", "-1"], "show is -1"),
        ('{"question": "q", "answer": "a"}\n', ["--step_splitter", "regex"], "needs a pattern"),
        ('{"question": "q", "answer": "a"}\n', ["--source_column", "question"], "go together"),
        ('{"question": "q", "answer": "a"}\n', ["--model_name", "tiny", "--max_length", "2"], "no row can be trained"),
    ],
)
def test_what_cannot_be_used(tmp_path, capsys, content, options, words):
    file = tmp_path / "data.jsonl"
    file.write_text(content)
    assert main(["check", str(file), *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert err.startswith("stepjepa check: error: ") and err.count("\n") == 1


def test_a_missing_file(tmp_path, capsys):
    (tmp_path / "train.jsonl").write_text("")
    assert main(["check", str(tmp_path / "trian.jsonl")]) == 2
    assert "did you mean" in capsys.readouterr().err
    assert main(["check"]) == 2
    assert "stepjepa check FILE" in capsys.readouterr().err


def test_hostile_text(data, capsys):
    file = data({"question": "\x1b[2J[bold]q[/bold]\x07", "answer": "\U0001f600\r\n\r\n\x1b]0;t\x07 \u202e"})
    assert main(["check", file]) == 0
    out = capsys.readouterr().out
    assert all(character == "\n" or character.isprintable() for character in out)
    assert r"\x1b[2J[bold]q[/bold]\x07" in out
    assert "Total steps: 2" in out


def test_help_has_what_training_takes(capsys):
    assert main(["check", "--help"]) == 0
    known = ",".join(get_args(get_type_hints(JEPAOptions)["step_splitter"]))
    assert f"--step_splitter {{{known}}}" in capsys.readouterr().out


def test_no_torch_without_a_tokenizer(data):
    for argv in (["check", "--help"], ["check", data(ROW)]):
        code = f"import sys\nfrom stepjepa.cli.main import main\nassert main({argv!r}) == 0\n"
        code += "assert 'torch' not in sys.modules"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_long_lines_are_folded():
    long = "  a " + "word " * 30
    first, *rest = folded([long])
    assert first.startswith("  a word") and len(first) <= 100
    assert all(line.startswith("    word") and len(line) <= 100 for line in rest)
    assert folded(["x" * 150, "short", "file: " + "y" * 150]) == ["x" * 150, "short", "file: " + "y" * 150]


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["f", "--show", "2"], ["--show", "2", "--file=f"]),
        (["--show", "2", "f"], ["--show", "2", "--file=f"]),
        (["--show=2", "f"], ["--show=2", "--file=f"]),
        (["--json", "f"], ["--json", "--file=f"]),
        (["--json", "true", "f"], ["--json", "true", "--file=f"]),
        (["--no_json", "f"], ["--no_json", "--file=f"]),
        (["--step-separator", "--", "f"], ["--step-separator", "--", "--file=f"]),
        (["--config", "c.yaml", "f"], ["--config", "c.yaml", "--file=f"]),
        (["f", "g"], ["g", "--file=f"]),
        (["--file", "f"], ["--file", "f"]),
        ([], []),
    ],
)
def test_where_the_file_may_stand(argv, expected):
    assert positional_argument(StrictParser((CheckOptions,)), argv, "file") == expected
