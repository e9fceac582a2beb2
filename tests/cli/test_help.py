"""``stepjepa COMMAND --help``: groups, defaults and one example for every command."""

import re

import pytest

from stepjepa.cli.main import COMMANDS, main
from stepjepa.config.option import options_of
from stepjepa.inspect.view import InspectOptions
from stepjepa.training.config import JEPAConfig
from stepjepa.training.options import RunOptions


def flags_in(text):
    return re.findall(r"^  --(\w+)", text, flags=re.MULTILINE)


@pytest.fixture
def shown(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")

    def show(*words):
        assert main([*words, *["--help"] * ("--help_all" not in words)]) == 0
        return capsys.readouterr().out

    return show


def test_mistakes_do_not_hide_the_help(shown):
    for words in (["check", "-x"], ["check", "a", "b"], ["prepare", "--config", "nowhere.yml"]):
        assert "usage: stepjepa" in shown(*words)


@pytest.mark.parametrize("command", list(COMMANDS))
def test_flags_stand_in_groups_with_defaults_and_one_example(shown, command):
    text = shown(*command.split())
    assert text.startswith(f"usage: stepjepa {command}")
    parts = re.split(r"^(\S.*):\n(?=  -)", text, flags=re.MULTILINE)
    groups = dict(zip(parts[1::2], parts[2::2], strict=True))
    flags = re.findall(r"^  (-\S+)", groups.pop("options"), flags=re.MULTILINE)
    assert set(flags) <= {"-h,", "--help_all", "--config"}, "a flag without a group"
    assert len(flags_in(text)) == len(set(flags_in(text))) and any("default: " in group for group in groups.values())
    example = text[text.index("\nexample: ") :]
    assert f"stepjepa {command} " in " ".join(example.split())
    spelt = set(re.findall(r"--(\w+)", "".join(groups.values())[: -len(example)]))  # others stand behind "also"
    assert set(re.findall(r"--(\w+)", example)) <= spelt | {"config"}, "the example has what is no option"


@pytest.mark.parametrize(("command", "parts"), [("train", (RunOptions, JEPAConfig)), ("inspect", (InspectOptions,))])
def test_help_all_shows_every_option_once(shown, command, parts):
    names = [name for part in parts for name in options_of(part)]
    assert sorted(flags_in(shown(command, "--help_all"))) == sorted([*names, "config"])
