"""``stepjepa check`` through the entry point."""

import json

import pytest

from stepjepa.cli.check import CheckOptions, file_argument
from stepjepa.cli.main import main
from stepjepa.cli.parser import StrictParser

ROW = {"question": "How many?", "answer": "First one.\n\nThen two."}


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
        r"  The answer has 1 step separator (\n\n)",
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
    assert "splitter 'separator' (<STEP>); with 'lines' 2 of 2 have: use --step_splitter lines" in out


def test_json(data, capsys):
    assert main(["check", "--json", data(ROW, 3)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["rows_usable"] == 1
    assert report["rows_skipped"] == {"not_an_object": 1}
    assert report["ready_for_step_jepa"] is True


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


def test_help(capsys):
    assert main(["check", "--help"]) == 0
    assert "--step_splitter {auto,separator,lines,numbered}" in capsys.readouterr().out


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
    assert file_argument(StrictParser((CheckOptions,)), argv) == expected
