"""StrictParser: values of flags, other spellings, what was set, the help. `--config run.yaml` is in test_yaml.py."""

from __future__ import annotations

import pytest

from stepjepa.config.parser import StrictParser, build
from stepjepa.config.spellings import published
from stepjepa.errors import ConfigError
from stepjepa.inspect.check import CheckOptions
from stepjepa.report.run import ReportOptions
from support.options import ALIASES, Options, Trainer


def parse(*argv: str) -> tuple[Options, Trainer]:
    return build((Options, Trainer), StrictParser((Options, Trainer), aliases=ALIASES).values(argv))


def message(*argv: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(*argv)
    return str(caught.value)


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        ("--objective regular", "objective", "regular"),
        ("--predictors -2", "predictors", -2),
        ("--lbd -1e-5", "lbd", -1e-5),
        ("--jepa-ratio none", "jepa_ratio", None),
        ("--step_separator=--x", "step_separator", "--x"),
        ("--train_file none", "train_file", None),
        ("--target_encoder none", "target_encoder", "none"),
        ("--lora", "lora", True),
        ("--no-shuffle", "shuffle", False),
        ("--layers 1 -2 3", "layers", [1, -2, 3]),
        ("--layers 1 2 --layers 3", "layers", [1, 2, 3]),  # the last flag alone would drop what came before
        ("--modules=a --modules b c", "modules", ["a", "b", "c"]),
        ("--report_to none", "report_to", "none"),
        ("--report_to wandb trackio", "report_to", ["wandb", "trackio"]),
        ('--kwargs {"a":{"b":[1,null]},"c":1e-5}', "kwargs", {"a": {"b": [1, None]}, "c": 1e-5}),
        ("--color blue", "color", "blue"),
        ("--seen no", "seen", "no"),
        ("--either auto", "either", "auto"),
        # other spellings
        ("--batch-size=4", "per_device_train_batch_size", 4),
        ("--regular --step_jepa false", "objective", "regular"),
        ("--no_use_lora", "lora", False),
        ("--debug 5", "verbosity", 5),
        ("--debug much", "max_steps", 1),
    ],
)
def test_a_flag_sets_its_field(words, name, value):
    options, trainer = parse(*words.split())
    found = getattr(trainer if hasattr(trainer, name) else options, name)
    assert found == value and type(found) is type(value)
    if hasattr(options, name):
        assert options == Options(**{name: value})


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--predictors 3.7", "--predictors: expected INT, got '3.7'"),
        ("--lbd nan", "--lbd: expected NUMBER, got 'nan'"),
        ("--lora maybe", "--lora: expected true|false, got 'maybe'"),
        ("--color bleu", "--color: expected {red,blue}, got 'bleu'; did you mean 'blue'?"),
        ("--no_shuffle=true", "--no_shuffle takes no value, got 'true'"),
        ("--train_file my data", "--train_file takes one value, got 2; quote a value that contains spaces"),
        ("--predictors 3 -lbd 1", "--predictors takes one value, got 3; did you mean --lbd?"),
        ("--lb 1", "unknown flag --lb; did you mean --lbd?"),
        ("--batch_sise 4", "unknown flag --batch_sise; did you mean --batch_size?"),
        ("--infonce --jepa_l2", "--infonce sets jepa_loss to 'infonce', but --jepa_l2 sets it to 'l2'; keep one of them"),
        ("--max_steps 3 --debug much", "--max_steps sets max_steps to 3, but --debug sets it to 1; keep one of them"),
        ("--max_steps 0", "max_steps must not be 0"),
        ("--debug", "--debug: expected one of 5, much, got no value"),
    ],
)  # fmt: skip
def test_what_does_not_fit(words, text):
    assert message(*words.split()) == text


def test_free_words_and_fields_that_cannot_be_set():
    with pytest.raises(ConfigError, match="unexpected argument 'train.jsonl': options are written --name value$"):
        StrictParser((Options,)).values(["train.jsonl"])
    assert message("--kwargs", "{'a': 1}").startswith("--kwargs: expected a JSON object, got \"{'a': 1}\" (Expecting")
    text = message("--derived", "1")
    assert text == "unknown flag --derived; --help lists the options"


@pytest.mark.parametrize(
    ("name", "words", "expected"),
    [
        ("file", "f --num_proc 2", {"num_proc": 2, "file": "f"}),
        ("file", "--step_jepa f", {"objective": "step_jepa", "file": "f"}),
        ("file", "--target_grad none f", {"target_grad": None, "file": "f"}),
        ("folders", "a --overwrite b", {"folders": ["a", "b"], "overwrite": True}),
        ("folders", "--overwrite true a", {"folders": ["a"], "overwrite": True}),
    ],
)
def test_where_free_words_may_stand(name, words, expected):
    kind = CheckOptions if name == "file" else ReportOptions
    assert StrictParser((kind,), aliases=published(kind), positional=[name]).values(words.split()) == expected
