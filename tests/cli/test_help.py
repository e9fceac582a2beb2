"""``stepjepa COMMAND --help``: groups, defaults and one example for every command, without torch."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from enum import Enum

import pytest

from stepjepa.cli.main import COMMANDS, main
from stepjepa.cli.parser import StrictParser
from stepjepa.cli.trainer_options import CommonTrainerOptions, trainer_option_names
from stepjepa.training.options import JEPAOptions, RunOptions


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
    names = [
        field.name for part in (RunOptions, JEPAOptions, CommonTrainerOptions) for field in dataclasses.fields(part)
    ]
    assert sorted(re.findall(r"^  --(\w+)", text, flags=re.MULTILINE)) == sorted([*names, "config"])
    assert "(also\n                        --batch_size; default: 8)" in text


def test_the_names_of_the_trainer_are_all_of_them():
    from transformers import TrainingArguments

    assert trainer_option_names() == {field.name for field in dataclasses.fields(TrainingArguments)}


@pytest.mark.parametrize(
    ("flag", "near"),
    [("--trian_file", "--train_file"), ("--learning-rat", "--learning_rate"), ("--adam_epsilo", "--adam_epsilon")],
)
def test_a_misspelt_flag_is_refused_before_torch_is_loaded(flag, near):
    words = ["train", "--no_lora", "--adam-beta2", "0.9", "--no_bf16", "--batch_size", "4", flag, "x"]
    code = f"import sys; from stepjepa.cli.main import main; print(main({words!r}), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["2", "False"]
    assert done.stderr.strip() == f"stepjepa train: error: unknown flag {flag}; did you mean {near}?"


def test_a_value_that_looks_like_a_flag(capsys):
    assert main(["train", "--train_file", "x", "--step_separator", "--foo"]) == 2
    assert capsys.readouterr().err.rstrip().endswith("; for a value, write --step_separator=--foo")
    for words in (["--no_lora", "--foo"], ["--foo", "--train_file"]):
        assert main(["train", *words]) == 2
        assert "for a value" not in capsys.readouterr().err


def test_where_the_names_are_not_known_none_is_refused_early(monkeypatch):
    parser = StrictParser((RunOptions,), prog="p")
    parser.check_flags(["--adam_beta", "1"], frozenset)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert trainer_option_names() == frozenset()


def test_the_shown_defaults_of_the_trainer_are_those_of_a_run():
    from stepjepa.training.config import JEPAConfig

    real = {field.name: field for field in dataclasses.fields(JEPAConfig)}
    for field in dataclasses.fields(CommonTrainerOptions):
        default = real[field.name].default
        default = default.value if isinstance(default, Enum) else default
        assert field.default == default or not (field.default or default), field.name


@pytest.mark.parametrize("command", COMMANDS)
def test_help_loads_neither_torch_nor_transformers(command):
    code = (
        f"import sys\nfrom stepjepa.cli.main import main\nassert main([{command!r}, '--help']) == 0\n"
        "assert not {'torch', 'transformers'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_parser_is_a_subclass_of_transformers_own():
    code = (
        "import sys\nfrom stepjepa.cli.parser import StrictParser\n"
        "assert 'transformers' not in sys.modules\n"
        "import transformers\nfrom transformers import HfArgumentParser\n"
        "assert issubclass(StrictParser, HfArgumentParser)\n"
        "assert transformers.hf_argparser.HfArgumentParser is HfArgumentParser"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
