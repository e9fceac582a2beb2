"""``stepjepa COMMAND --help``: groups, defaults and one example for every command."""

import re

import pytest

from stepjepa.cli.main import COMMANDS, main


def flags_in(text):
    return re.findall(r"^  --(\w+)", text, flags=re.MULTILINE)


@pytest.mark.parametrize("command", list(COMMANDS))
def test_flags_stand_in_groups_with_defaults_and_one_example(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
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
    assert main([command, "--help_all"]) == 0
    assert set(flags_in(text)) - {"help_all"} <= set(flags_in(capsys.readouterr().out))


@pytest.mark.parametrize("words", [["check", "-x"], ["check", "a", "b"], ["prepare", "--config", "nowhere.yml"]])
def test_mistakes_do_not_hide_the_help(words, capsys):
    assert main([*words, "--help"]) == 0
    assert "usage: stepjepa" in capsys.readouterr().out
