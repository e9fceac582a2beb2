"""``stepjepa COMMAND --help``: groups, defaults and one example for every command, without torch."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys

import pytest

from stepjepa.cli.main import COMMANDS, main
from stepjepa.training.options import JEPAOptions, RunOptions, TrainerOptions


@pytest.fixture
def shown(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")

    def show(command):
        assert main([command, "--help"]) == 0
        return capsys.readouterr().out

    return show


@pytest.mark.parametrize("command", COMMANDS)
def test_flags_stand_in_groups_with_defaults_and_one_example(shown, command):
    text = shown(command)
    assert text.startswith(f"usage: stepjepa {command}")
    parts = re.split(r"^(\S.*):\n(?=  -)", text, flags=re.MULTILINE)
    groups = dict(zip(parts[1::2], parts[2::2], strict=True))
    own = {name: group for name, group in groups.items() if name != "options"}
    assert own and len(parts) == 1 + 2 * len(groups)
    flags = re.findall(r"^  (-\S+)", groups.pop("options"), flags=re.MULTILINE)
    assert flags == ["-h,", "--config"], "a flag without a group"
    known = re.findall(r"^  --(\w+)", text, flags=re.MULTILINE)
    assert len(known) == len(set(known)) and any("default: " in group for group in own.values())
    assert len(re.findall(r"^example: stepjepa ", text, flags=re.MULTILINE)) == 1
    example = text[text.index("\nexample: ") :]
    assert f"stepjepa {command} " in " ".join(example.split())
    spelt = set(re.findall(r"--(\w+)", text[: -len(example)]))  # other spellings stand behind "also"
    assert set(re.findall(r"--(\w+)", example)) <= spelt
    assert max(map(len, text.splitlines())) <= 100


def test_every_option_of_train_is_shown_once(shown):
    text = shown("train")
    names = [field.name for part in (RunOptions, JEPAOptions, TrainerOptions) for field in dataclasses.fields(part)]
    assert sorted(re.findall(r"^  --(\w+)", text, flags=re.MULTILINE)) == sorted([*names, "config"])
    assert "(also\n                        --batch_size; default: 8)" in text


@pytest.mark.parametrize(
    ("flag", "near"),
    [("--trian_file", "--train_file"), ("--learning-rat", "--learning_rate"), ("--adam_epsilo", "--adam_epsilon")],
)
def test_a_misspelt_flag_is_answered_with_the_nearest_name(flag, near, capsys):
    words = ["--no_lora", "--adam-beta2", "0.9", "--no_bf16", "--batch_size", "4", flag, "x"]
    assert main(["train", *words]) == 2
    assert capsys.readouterr().err.strip() == f"stepjepa train: error: unknown flag {flag}; did you mean {near}?"


def test_a_value_that_looks_like_a_flag(capsys):
    assert main(["train", "--train_file", "x", "--step_separator", "--foo"]) == 2
    assert capsys.readouterr().err.rstrip().endswith("; for a value, write --step_separator=--foo")
    for words in (["--no_lora", "--foo"], ["--foo", "--train_file"]):
        assert main(["train", *words]) == 2
        assert "for a value" not in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_help_loads_neither_torch_nor_transformers(command):
    code = (
        f"import sys\nfrom stepjepa.cli.main import main\nassert main([{command!r}, '--help']) == 0\n"
        "assert not {'torch', 'transformers'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
