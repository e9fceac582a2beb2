"""Every command of docs/inspect.md runs, and its Python writes a page."""

import json
import shlex
from pathlib import Path

import pytest

from stepjepa.cli.main import main
from stepjepa.inspect.record import KINDS
from stepjepa.modeling.load import load_model, load_tokenizer
from support.pages import read_page
from support.rows import step_rows

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "inspect.md").read_text(encoding="utf-8")
BLOCKS = PAGE.split("```")[1::2]
COMMANDS = [
    line.split("#")[0].strip() for block in BLOCKS for line in block.splitlines() if line.startswith("stepjepa ")
]


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = step_rows(20)
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (mia,) = (block.strip() for block in BLOCKS if block.strip().startswith("{"))
    (tmp_path / "mia.jsonl").write_text(mia)
    tokenizer = load_tokenizer("tiny", (message["content"] for row in rows for message in row["messages"]))
    load_model("tiny", tokenizer, seed=1).save_pretrained("runs/mine")
    tokenizer.save_pretrained("runs/mine")
    return tokenizer


def test_there_are_commands():
    assert len(COMMANDS) == 7 and sum("--html" in command for command in COMMANDS) == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_command(command, workplace, capsys):
    words = shlex.split(command)[1:]
    assert main([*words, *([] if "--model_name" in words else ["--model_name", "tiny"])]) == 0, capsys.readouterr().err


def test_python(workplace):
    (code,) = (block.removeprefix("python\n") for block in BLOCKS if block.startswith("python\n"))
    exec(code, {"tokenizer": workplace})
    assert read_page(Path("row.html"))["title"] == "row 3 (data.jsonl line 4), step_jepa, K = 2"


def test_every_letter_is_explained():
    assert [line.split("`")[1] for line in PAGE.splitlines() if line.startswith("| `") and line[4:6] == "` "] == [
        kind.letter for kind in KINDS.values()
    ]
