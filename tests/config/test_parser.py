"""StrictParser: the values of flags. Aliases and help are in test_parser_aliases.py, YAML in test_parser_yaml.py."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from stepjepa.config.parser import StrictParser
from stepjepa.errors import ConfigError, StepJepaError
from support.options import Color, Options


def parse(*argv: str) -> Options:
    return StrictParser(Options, prog="stepjepa train").parse(list(argv))[0]


def message(*argv: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(*argv)
    return str(caught.value)


def test_defaults():
    assert parse() == Options()


@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        (["--objective", "regular"], "objective", "regular"),
        (["--predictors", "3"], "predictors", 3),
        (["--predictors=3"], "predictors", 3),
        (["--predictors", "-2"], "predictors", -2),
        (["--lbd", "1e-5"], "lbd", 1e-5),
        (["--lbd", "-1e-5"], "lbd", -1e-5),
        (["--lbd", "2"], "lbd", 2.0),
        (["--lbd", "inf"], "lbd", float("inf")),
        (["--lbd", "1", "--lbd", "2"], "lbd", 2.0),
        (["--jepa_ratio", "0.5"], "jepa_ratio", 0.5),
        (["--jepa-ratio", "0.5"], "jepa_ratio", 0.5),
        (["--jepa_ratio", "none"], "jepa_ratio", None),
        (["--horizon", "2"], "horizon", 2),
        (["--horizon", "null"], "horizon", None),
        (["--step_separator", "---"], "step_separator", "---"),
        (["--step_separator", "- -"], "step_separator", "- -"),
        (["--step_separator=--x"], "step_separator", "--x"),
        (["--step_separator="], "step_separator", ""),
        (["--step_separator", "none"], "step_separator", "none"),
        (["--step_separator=a=b\nc"], "step_separator", "a=b\nc"),
        (["--train_file", "none"], "train_file", None),
        (["--train_file", "a b.jsonl"], "train_file", "a b.jsonl"),
        (["--target_encoder", "none"], "target_encoder", "none"),
        (["--target_encoder", "null"], "target_encoder", None),
        (["--lora"], "lora", True),
        (["--lora", "true"], "lora", True),
        (["--lora", "no"], "lora", False),
        (["--lora", "1"], "lora", True),
        (["--shuffle", "False"], "shuffle", False),
        (["--no_shuffle"], "shuffle", False),
        (["--no-shuffle"], "shuffle", False),
        (["--no_lora"], "lora", False),
        (["--tf32"], "tf32", True),
        (["--tf32", "none"], "tf32", None),
        (["--no_tf32"], "tf32", False),
        (["--layers", "1", "-2", "3"], "layers", [1, -2, 3]),
        (["--layers", "4"], "layers", [4]),
        (["--modules", "q_proj", "v_proj"], "modules", ["q_proj", "v_proj"]),
        (["--modules", "none"], "modules", None),
        (["--report_to", "none"], "report_to", "none"),
        (["--report_to", "wandb"], "report_to", "wandb"),
        (["--report_to", "wandb", "trackio"], "report_to", ["wandb", "trackio"]),
        (["--kwargs", '{"a": {"b": [1, null]}, "c": 1e-5}'], "kwargs", {"a": {"b": [1, None]}, "c": 1e-5}),
        (["--kwargs", "settings.json"], "kwargs", "settings.json"),
        (["--kwargs", "none"], "kwargs", None),
        (["--switches", '{"rope": true}'], "switches", {"rope": True}),
        (["--color", "blue"], "color", Color.BLUE),
        (["--color_name", "red"], "color_name", "red"),
        (["--seen", "no"], "seen", "no"),
        (["--seen"], "seen", True),
        (["--seen", "all"], "seen", "all"),
        (["--seen", "true"], "seen", True),
        (["--space", "false"], "space", False),
        (["--space", "mine"], "space", "mine"),
        (["--folder", "a/b"], "folder", Path("a/b")),
        (["--level", "debug"], "level", "debug"),
    ],
)
def test_a_flag_sets_its_field(argv, name, value):
    options = parse(*argv)
    assert getattr(options, name) == value
    assert type(getattr(options, name)) is type(value)
    assert options == Options(**{name: value})


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--predictors", "3.7"], "--predictors: expected a whole number, got '3.7'"),
        (["--predictors", "yes"], "--predictors: expected a whole number, got 'yes'"),
        (["--predictors"], "--predictors: expected a whole number, got no value"),
        (["--predictors="], "--predictors: expected a whole number, got ''"),
        (["--predictors", "none"], "--predictors: expected a whole number, got 'none'"),
        (["--horizon", "2.0"], "--horizon: expected a whole number or none, got '2.0'"),
        (["--lbd", "big"], "--lbd: expected a number, got 'big'"),
        (["--lbd", "nan"], "--lbd: expected a number, got 'nan'"),
        (["--lora", "maybe"], "--lora: expected true or false, got 'maybe'"),
        (
            ["--objective", "step_jeppa"],
            "--objective: expected one of regular, llm_jepa, step_jepa, got 'step_jeppa'; "
            "did you mean 'step_jepa'?",
        ),
        (["--objective", "x"], "--objective: expected one of regular, llm_jepa, step_jepa, got 'x'"),
        (["--color", "bleu"], "--color: expected one of red, blue, got 'bleu'; did you mean 'blue'?"),
        (["--color_name", "green"], "--color_name: expected one of red, blue, got 'green'"),
        (["--level", "inof"], "--level: expected one of info, debug, got 'inof'; did you mean 'info'?"),
        (["--layers"], "--layers: expected a list (a whole number each), got no value"),
        (["--layers", "1", "x"], "--layers: expected a whole number, got 'x'"),
        (["--switches", '{"rope": 1}'], "--switches: expected true or false for 'rope', got 1"),
        (["--switches", "[1]"], "--switches: expected a JSON object or none, got '[1]'"),
        (["--no_shuffle", "true"], "--no_shuffle takes no value, got 'true'"),
        (["--no_shuffle=true"], "--no_shuffle takes no value, got 'true'"),
        (
            ["--train_file", "my", "data.jsonl"],
            "unexpected argument 'data.jsonl' after '--train_file my'; quote a value that has spaces in it",
        ),
        (["--predictors", "3", "-lbd", "1"], "unexpected argument '-lbd' after '--predictors 3'; did you mean --lbd?"),
        (
            ["train.jsonl"],
            "unexpected argument 'train.jsonl': options are written --name value; did you mean --train_file?",
        ),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit(argv, text):
    assert message(*argv) == text


def test_broken_json():
    for flag in ("--kwargs", "--switches"):
        assert message(flag, "{'a': 1}").startswith(f"{flag}: expected a JSON object, got \"{{'a': 1}}\" (Expecting")


def test_a_field_for_python_only():
    assert parse("--plugin", "none").plugin is None
    assert message("--plugin", "x") == (
        "--plugin: expected Options (an object that only Python code can give) or none, got 'x'"
    )


@pytest.mark.parametrize(
    ("flag", "near"),
    [
        ("--predictor", "--predictors"),
        ("--Predictors", "--predictors"),
        ("--pred", "--predictors"),
        ("--jepa-rati", "--jepa_ratio"),
        ("--no_shufle", "--no_shuffle"),
        ("--no_predictors", "--predictors"),
        ("--derived", "--derived"),
        ("--confg", "--config"),
        ("--helpp", "--help"),
    ],
)
def test_an_unknown_flag_names_the_nearest(flag, near):
    text = message(flag, "1")
    assert text.startswith(f"unknown flag {flag}; did you mean --")
    if near != flag:  # a field that cannot be set is no flag, and no suggestion
        assert text == f"unknown flag {flag}; did you mean {near}?"
    else:
        assert near not in text.split(";")[1]


def test_something_is_named_however_far():
    assert re.fullmatch(r"unknown flag --qqqqq; did you mean --\w+\?", message("--qqqqq"))


def test_no_abbreviations_and_no_exit():
    assert message("--lb", "1") == "unknown flag --lb; did you mean --lbd?"
    assert issubclass(ConfigError, StepJepaError) and not issubclass(ConfigError, SystemExit)


def test_the_process_arguments_are_the_default(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["stepjepa", "--lbd", "3"])
    assert StrictParser(Options).parse()[0].lbd == 3.0


def test_importing_the_parser_loads_no_torch():
    code = "import stepjepa.config.parser, sys; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
