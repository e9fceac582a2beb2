"""``stepjepa inspect`` through the entry point, with a tokenizer trained on the file."""

import json

import pytest

from stepjepa.cli.main import main

STEPS = {"question": "How many?", "answer": "First one.\n\nThen two.\n\nSo three."}
ONE = {"question": "How many?", "answer": "Three."}
HOSTILE = {
    "messages": [
        {"role": "system", "content": "[bold]Be\x1b[31m"},
        {"role": "user", "content": "\u202e:smile:\r\n[/]"},
        {"role": "assistant", "content": "\U0001f600 one\x07\r\n\r\ntwo\x1b]0;t\x07"},
    ]
}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "data.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in (STEPS, ONE, HOSTILE, {"messages": []})))
    return str(path)


@pytest.fixture
def inspect(capsys, monkeypatch, file):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")

    def call(*options, status=0):
        assert main(["inspect", file, "--model_name", "tiny", *options]) == status
        out, err = capsys.readouterr()
        assert (err == "") == (status == 0)
        return err if status else out

    return call


def cells(out, name):
    """The tokens of a section, lines joined."""
    lines = out.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(f"{name} "))
    start = next(line for line in lines if line.startswith("segment")).index("tokens")
    found = [lines[first][start:]]
    for line in lines[first + 1 :]:
        if not line.startswith(" "):
            break
        found.append(line[start:])
    return "|".join(found).replace("\u2502", "").replace("|", "")


def test_first_pair_by_default(inspect, file):
    out = inspect()
    assert out.startswith(f"row 0 ({file} line 1)") or file in out.splitlines()[0] + out.splitlines()[1]
    assert "2 predictors" in " ".join(out.split())
    assert "1 pair\n" in out
    assert cells(out, "trunk: user") == "How·many?"
    assert cells(out, "trunk: step 1") == "First·one.↵↵ «end of source 1»"
    assert cells(out, "trunk: step 3") == "So·three."
    assert cells(out, "trunk: end of turn") == "<end>"
    assert cells(out, "branch 1") == "<predictor_1><predictor_2> «source 1»"
    assert cells(out, "target 1") == "Then·two.↵↵ «target 1»"
    assert "branch 2" not in out


def test_all_pairs_and_the_order_of_predictors(inspect):
    out = inspect("--step_pairs", "all", "--predictors", "1")
    assert "2 pairs\n" in out
    assert cells(out, "branch 2") == "<predictor_1> «source 2»"
    assert cells(out, "target 2") == "So·three. «target 2»"
    out = inspect("--predictor_order", "descending")
    assert cells(out, "branch 1") == "<predictor_2><predictor_1> «source 1»"


def test_question_to_answer(inspect):
    out = inspect("--objective", "llm_jepa")
    assert "0 predictors" in " ".join(out.split())
    assert "branch" not in out.split("segment")[1]
    assert cells(out, "trunk: user") == "How·many? «end of source 1, source 1»"
    assert cells(out, "target 1") == "First·one.↵↵Then·two.↵↵So·three. «target 1»"
    out = inspect("--objective", "llm_jepa", "--last_token", "-1")
    assert cells(out, "target 1").endswith("<end> «target 1»")


def test_a_row_without_a_pair_is_drawn_with_the_reason(inspect):
    out = inspect("--row", "1")
    assert "no pair: the answer has fewer than two steps" in out
    assert "pairs: none" in out
    assert cells(out, "trunk: step 1") == "Three."
    assert "no pair: the objective regular makes none" in inspect("--objective", "regular")
    out = inspect("--max_length", "14")
    assert "no pair: the views were cut at max_length" in out
    assert "cut at max_length 14" in out


def test_options_of_the_chat(inspect, tmp_path):
    assert cells(inspect("--system_prompt", "Add."), "trunk: system") == "Add."
    template = tmp_path / "chat.jinja"
    template.write_text("{% for m in messages %}<<{{ m['role'] }}>>{{ m['content'] }}{% endfor %}")
    out = inspect("--chat_template", str(template))
    assert cells(out, "trunk: template") == "<<user>>"
    assert cells(out, "trunk: step 1") == "First·one.↵↵ «end of source 1»"


def test_hostile_text(inspect):
    out = inspect("--row", "2")
    assert all(character == "\n" or character.isprintable() for character in out)
    assert cells(out, "trunk: system") == r"[bold]Be\x1b[31m"
    assert cells(out, "trunk: user") == r"\u202e:smile:\r↵[/]"
    assert cells(out, "target 1").startswith(r"two\x1b]0;t\x07")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--row", "4"], "has 4 rows, so the last one is --row 3"),
        (["--row", "-1"], "rows are counted from 0"),
        (["--row", "3"], "line 4: 'messages' is not a non-empty list"),
        (["--max_length", "5"], "line 1: the prompt has"),
        (["--predictors", "-1"], "predictors is -1"),
        (["--last_token", "1"], "last_token is 1"),
        (["--step_pairs", "every"], "--step_pairs"),
        (["--lbd", "1"], "unknown flag --lbd"),
        (["--chat_template", "no.jinja"], "no.jinja"),
    ],
)
def test_what_cannot_be_drawn(inspect, options, words):
    err = inspect(*options, status=2)
    assert words in err
    assert err.startswith("stepjepa inspect: error: ") and err.count("\n") == 1


def test_files_that_cannot_be_used(tmp_path, capsys):
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    assert main(["inspect", str(empty)]) == 2
    assert "empty" in capsys.readouterr().err
    assert main(["inspect", str(tmp_path / "none.jsonl")]) == 2
    assert "no such file" in capsys.readouterr().err
    assert main(["inspect", "--row", "2"]) == 2
    assert "stepjepa inspect FILE" in capsys.readouterr().err


def test_help(capsys):
    assert main(["inspect", "--help"]) == 0
    assert "--predictor_order {ascending,descending}" in capsys.readouterr().out


def test_published_data(shared_dir, capsys, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    file = str(shared_dir / "data" / "gsm8k_test.jsonl")
    assert main(["inspect", file, "--model_name", "tiny", "--step_splitter", "lines", "--step_pairs", "all"]) == 0
    out = capsys.readouterr().out
    assert "target 2" in out and "####" in out
