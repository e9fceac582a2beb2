"""Options that were ignored without a word, numbers that no run can use, and outputs that were half done."""

from __future__ import annotations

import dataclasses
import math
import sys
import typing

import pytest
import transformers
import yaml

from stepjepa.cli.main import main
from stepjepa.errors import ConfigError, DataError
from stepjepa.study.reading import read_options
from stepjepa.study.records import StudyRunFolder, write_plan
from stepjepa.study.spec import StudyOptions, all_runs
from stepjepa.training.config import JEPAConfig
from stepjepa.training.options import JEPAOptions, RunOptions
from stepjepa.training.summary import run_options_unread
from support.answers import TEST, write

STUDY = """\
data: {builtin: {train_rows: 6, select_rows: 2, test_rows: 2}}
base: {model_name: tiny, max_steps: 4}
arms: {regular: {objective: regular}, step_jepa: {objective: step_jepa, lbd: 0.5}}
seeds: [1, 2, 3]
mini: {seeds: [7], base: {max_steps: 2}}
"""
BLOCKS = "blocks: {small: {base: {max_steps: 3}, seeds: [5]}, large: {}}\n"


@pytest.fixture
def study(tmp_path):
    def study(*overrides, text=STUDY, **options):
        file = tmp_path / "study.yaml"
        file.write_text(text)
        return read_options(StudyOptions(str(file), overrides=list(overrides), **options))

    return study


def test_mini_takes_what_is_set_for_it_under_either_name(study):
    assert study(mini=True).blocks[0].seeds == (7,)
    for name in ("mini.seeds", "seeds"):
        assert study(f"{name}=[4, 5]", mini=True).blocks[0].seeds == (4, 5)
    assert study("mini.base.max_steps=1", mini=True).blocks[0].base["max_steps"] == 1
    assert study(mini=True, seeds=[9]).blocks[0].seeds == (9,)


def test_what_no_run_would_read_is_refused(study):
    with pytest.raises(ConfigError, match="--set mini.seeds=.*: the section mini is read with --mini only"):
        study("mini.seeds=[4]")
    with pytest.raises(ConfigError, match="unknown key 'mini'"):
        study("mini.mini.seeds=[4]", mini=True)
    for override, path in (("seeds=[4]", "seeds"), ("base.max_steps=9", "base.max_steps")):
        with pytest.raises(ConfigError, match=f"the block small has its own value; write blocks.small.{path}="):
            study(override, text=STUDY + BLOCKS)
    with pytest.raises(ConfigError, match="block small has its own"):
        study(text=STUDY + BLOCKS, seeds=[4])
    assert study("blocks.small.seeds=[4]", text=STUDY + BLOCKS).blocks[0].seeds == (4,)
    assert study("base.lbd=1", text=STUDY + BLOCKS).blocks[1].base["lbd"] == 1  # no block says anything of it


@pytest.mark.parametrize(("base", "first"), [("", "trial"), (", run_name: mine", "mine")])
def test_runs_of_a_study_have_names_for_trackers(study, tmp_path, base, first):
    found = study(text=STUDY.replace("max_steps: 4", f"max_steps: 4{base}") + "controls: [shuffled]\n")
    names = []
    for run in all_runs(found):
        folder = StudyRunFolder(tmp_path / "trial" / run.folder)
        write_plan(folder, run, tmp_path / "trial")
        names.append(yaml.safe_load(folder.train_config.read_text())["run_name"])
    assert len(set(names)) == len(names) == 9
    assert names[0] == f"{first}/regular/seed-1" and names[-1] == f"{first}/step_jepa+shuffled/seed-3"


@pytest.mark.parametrize("share", ["0.2", "0", "1", "1e-1"])
def test_a_share_is_no_split(share, tmp_path, capsys):
    rows = write(tmp_path / "rows.jsonl", TEST[:4])
    commands = [f"train --train_file {rows} --eval_split={share} --output_dir out"]
    commands += [f"train --train_file {rows} --eval_file {rows} --eval_split={share} --output_dir out"]
    commands += [f"check {rows} --eval_file {rows} --eval_split={share}", f"check {rows} --dataset_split={share}"]
    for command in commands:
        assert main(command.split()) == 2
        assert "stepjepa prepare FILE --valid_ratio" in (error := capsys.readouterr().err) and error.count("\n") == 1
    with pytest.raises((ConfigError, DataError), match="a number"):
        RunOptions(eval_split=share)


def test_options_of_an_evaluation_that_is_not_there_are_noted(tmp_path):
    rows = write(tmp_path / "rows.jsonl", TEST[:2])
    given = {"eval_split", "dataset_split", "eval_samples", "eval_max_new_tokens"}
    changed = {"eval_split": "validation", "dataset_split": "all", "eval_samples": 7, "eval_max_new_tokens": 8}
    assert run_options_unread(RunOptions(train_file=[rows]), given) == []  # as resolved.yaml has them
    lines = run_options_unread(RunOptions(train_file=[rows], **changed), given)
    assert lines == [
        "--dataset_split has no effect: the files have no splits",
        "--eval_split has no effect without --eval_file",
        "--eval_samples has no effect without --eval_metrics",
        "--eval_max_new_tokens has no effect without --eval_metrics",
    ]
    with_file = RunOptions(train_file=[rows], eval_file=rows, eval_metrics=["exact"], **changed)
    assert run_options_unread(with_file, given)[1] == "--eval_split has no effect: the files have no splits"
    hub = RunOptions(train_file=["openai/gsm8k:main"], eval_file="openai/gsm8k:main", eval_metrics=["exact"], **changed)
    assert run_options_unread(hub, given) == []


def test_without_matplotlib_the_page_is_written_and_the_picture_is_said(tmp_path, capsys, monkeypatch):
    rows = write(tmp_path / "rows.jsonl", TEST[:4])
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page, picture = tmp_path / "page.html", tmp_path / "row.png"
    assert main(["inspect", rows, "--model_name", "tiny", "--html", str(page), "--png", str(picture)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "--png" in error and "needs matplotlib" in error and f"written: {page}" in error
    assert page.stat().st_size > 10_000 and not picture.exists()


NUMBERS = {
    name
    for name, hint in typing.get_type_hints(transformers.TrainingArguments).items()
    if {int, float} & {hint, *typing.get_args(hint)} and bool not in {hint, *typing.get_args(hint)}
}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**20, -(10**20), -2])
def test_no_number_of_the_trainer_is_beyond_use(value, tmp_path):
    assert {"save_steps", "per_device_train_batch_size", "max_grad_norm", "seed", "warmup_steps"} <= NUMBERS
    for name in sorted(NUMBERS):
        with pytest.raises(ConfigError, match=f"^{name} is "):
            JEPAConfig(output_dir=str(tmp_path), **{name: value})


@pytest.mark.parametrize("name", ["per_device_train_batch_size", "per_device_eval_batch_size"])
def test_a_batch_that_would_be_filled_for_hours_is_refused(name, tmp_path):
    with pytest.raises(ConfigError, match=f"^{name} is 2147483648; it must be .* at most 1048576$"):
        JEPAConfig(output_dir=str(tmp_path), **{name: 2**31})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_number_of_the_method_is_infinite(value):
    hints = typing.get_type_hints(JEPAOptions)
    names = [field.name for field in dataclasses.fields(JEPAOptions) if {int, float} & set(kinds(hints[field.name]))]
    assert len(names) > 20
    for name in names:
        with pytest.raises(ConfigError, match=name):
            JEPAOptions(**{name: value}).check()


def kinds(hint):
    return typing.get_args(hint) or (hint,)


@pytest.mark.parametrize(
    "flag",
    ["--save_steps=-inf", "--per_device_train_batch_size=100000000000000000000", "--eval_steps=nan", "--lbd=1e999",
     "--max_steps=-7", "--num_train_epochs=0", "--adam_beta2=1", "--seed=" + "9" * 5000],
)  # fmt: skip
def test_numbers_of_the_command_line_are_one_line(flag, tmp_path, capsys):
    assert main(["train", "--train_file", "nothing.jsonl", flag, "--output_dir", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and len(error) < 500 and flag.partition("=")[0].strip("-") in error


@pytest.mark.parametrize("longest", ['"text"', "-5", "true", "[1]", "null"])
def test_a_tokenizer_without_a_usable_length_is_one_line(longest, tmp_path, capsys):
    from stepjepa.modeling.load import load_tokenizer

    load_tokenizer("tiny", ["a few words"]).save_pretrained(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    text = file.read_text()
    assert '"model_max_length": ' in text
    file.write_text("\n".join(
        f'  "model_max_length": {longest},' if "model_max_length" in line else line for line in text.splitlines()
    ))  # fmt: skip
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "a few words ' + "and more " * 50 + '"}\n')
    status = main(["check", str(rows), "--model_name", str(tmp_path)])
    error = capsys.readouterr().err
    if longest == "null":  # none said: transformers takes its own
        assert "Traceback" not in error
    else:
        assert status == 2 and error.count("\n") == 1 and "model_max_length" in error


def test_a_tokenizer_of_another_model_is_one_line(tmp_path, capsys):
    from stepjepa.modeling.load import load_model, load_tokenizer

    few = load_tokenizer("tiny", ["a"])
    load_model("tiny", few).save_pretrained(tmp_path)
    load_tokenizer("tiny", [row["messages"][1]["content"] for row in TEST]).save_pretrained(tmp_path)
    rows = write(tmp_path / "rows.jsonl", TEST[:2])
    assert main(["evaluate", str(tmp_path), rows, "--metric", "exact", "--output_dir", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "embeddings and the model has" in error and ": error: " in error.splitlines()[-1]


def test_text_that_is_no_text_is_one_line(tmp_path, capsys):
    rows = write(tmp_path / "rows.jsonl", TEST[:2])
    lone = tmp_path / "lone.jsonl"
    lone.write_text('{"text": "a \\ud800 b"}\n{"text": "whole words of a text that is long enough"}\n')
    assert main(["check", str(lone), "--model_name", "tiny"]) == 0
    assert "skipped 1" in capsys.readouterr().out
    assert main(["inspect", str(lone), "--model_name", "tiny", "--objective", "split", "--row", "1"]) == 0
    words = ["--model_name", "tiny", "--objective", "split", "--max_steps", "1", "--save_strategy", "no"]
    assert main(["train", "--train_file", str(lone), *words, "--output_dir", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    config = tmp_path / "config.yaml"
    config.write_text('system_prompt: "a \\ud800 b"\n')
    for flags in (
        ["--system_prompt", "a\udcffb"],
        ["--config", str(config)],
        ["--chat_template_kwargs", '{"a": "\\udc00"}'],
    ):
        assert main(["check", rows, "--model_name", "tiny", *flags]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and "expected UTF-8 text" in error
