"""``stepjepa COMMAND --help``: groups, defaults and one example for every command, without torch."""

import json
import re
import subprocess
import sys

import pytest

from stepjepa.cli.main import COMMANDS, main
from stepjepa.config.option import options_of
from stepjepa.inspect.view import InspectOptions
from stepjepa.training.config import JEPAConfig
from stepjepa.training.options import FIRST, RunOptions
from support.reports import write_run

# Commands whose help leaves options to --help_all.
SHORT = {"train", "check", "inspect"}


def flags_in(text):
    return re.findall(r"^  --(\w+)", text, flags=re.MULTILINE)


@pytest.fixture
def shown(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")

    def show(*words):
        assert main([*words, *["--help"] * ("--help_all" not in words)]) == 0
        return capsys.readouterr().out

    return show


@pytest.mark.parametrize("command", list(COMMANDS))
def test_flags_stand_in_groups_with_defaults_and_one_example(shown, command):
    text = shown(*command.split())
    assert text.startswith(f"usage: stepjepa {command}")
    parts = re.split(r"^(\S.*):\n(?=  -)", text, flags=re.MULTILINE)
    groups = dict(zip(parts[1::2], parts[2::2], strict=True))
    own = {name: group for name, group in groups.items() if name != "options"}
    assert own and len(parts) == 1 + 2 * len(groups)
    flags = re.findall(r"^  (-\S+)", groups.pop("options"), flags=re.MULTILINE)
    assert flags == ["-h,", *["--help_all"] * (command in SHORT), "--config"], "a flag without a group"
    known = flags_in(text)
    assert len(known) == len(set(known)) and any("default: " in group for group in own.values())
    assert len(re.findall(r"^example: stepjepa ", text, flags=re.MULTILINE)) == 1
    example = text[text.index("\nexample: ") :]
    assert f"stepjepa {command} " in " ".join(example.split())
    spelt = set(re.findall(r"--(\w+)", "".join(groups.values())[: -len(example)]))  # others stand behind "also"
    named = set(re.findall(r"--(\w+)", parts[0] + example)) - {"option", "help"}
    assert named <= spelt | {"config"}, "the docstring of the command names what is no option"
    assert max(map(len, text.splitlines())) <= 120


def test_the_help_of_train_begins_with_file_model_and_output(shown):
    text = shown("train")
    assert flags_in(text)[2:] == [name for names in FIRST.values() for name in names]
    assert flags_in(text)[2:5] == ["train_file", "model_name", "output_dir"] and len(flags_in(text)) == 2 + 25
    assert "(also --batch_size, --per_gpu_train_batch_size; default: 8)" in " ".join(text.split())


@pytest.mark.parametrize(("command", "parts"), [("train", (RunOptions, JEPAConfig)), ("inspect", (InspectOptions,))])
def test_help_all_shows_every_option_once(shown, command, parts):
    names = [name for part in parts for name in options_of(part)]
    assert sorted(flags_in(shown(command, "--help_all"))) == sorted([*names, "config"])


def test_a_slip_in_a_name_is_answered_before_torch_is_loaded(tmp_path):
    (tmp_path / "run.yaml").write_text("seed: 1\nlearning_rat: 1\n")
    commands = [
        ["train", "data.jsonl", "--tf32", "--no_fp16", "--learning-rat", "1"],
        ["train", "--config", str(tmp_path / "run.yaml")],
        ["train", "--config", str(tmp_path / "none.yaml")],
        ["train", "--adam_epsilo", "1"],
        ["train", "--no_lora", "--adam-beta2", "0.9", "--trian_file", "x"],
        ["train", "--llm_jepa", "--lbd", "1"],
    ]
    code = f"import sys\nfrom stepjepa.cli.main import main\nfor command in {commands!r}:\n"
    code += "    assert main(command) == 2\n    assert not {'torch', 'transformers'} & sys.modules.keys(), command\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert [line.partition("error: ")[2].removeprefix(f"{tmp_path}/") for line in done.stderr.splitlines()] == [
        "unknown flag --learning-rat; did you mean --learning_rate?",
        "run.yaml:2: unknown key 'learning_rat'; did you mean 'learning_rate'?",
        "none.yaml: no such file; --config takes the path of a YAML file",
        "unknown flag --adam_epsilo; did you mean --adam_epsilon?",
        "unknown flag --trian_file; did you mean --train_file?",
        "unknown flag --llm_jepa; did you mean --objective llm_jepa?",
    ]


def test_neither_the_help_nor_a_report_nor_what_reads_rows_alone_loads_torch(tmp_path):
    file = tmp_path / "data.jsonl"
    file.write_text(json.dumps({"question": "How many?", "answer": "First one.\n\nThen two.\n#### 2"}))
    commands = [
        ["prepare", str(file), "--output_file", str(tmp_path / "out.jsonl")],
        *([name, "--help"] for name in COMMANDS),
        ["report", str(write_run(tmp_path / "run"))],
        ["check", str(file)],
    ]
    code = f"import sys\nfrom stepjepa.cli.main import main\nfor number, command in enumerate({commands!r}):\n"
    code += "    assert main(command) == 0\n"
    code += "    assert not {'torch', 'transformers'} & sys.modules.keys(), command\n"
    code += "    assert number or not {'datasets', 'numpy'} & sys.modules.keys(), command"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "written: " in done.stdout and "Verdict: ready for step_jepa" in done.stdout
