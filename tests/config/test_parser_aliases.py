"""StrictParser: several dataclasses, other spellings, what was set, and the help."""

from __future__ import annotations

import pytest

from stepjepa.config.parser import StrictParser
from stepjepa.errors import ConfigError
from support.options import ALIASES, Options, Trainer


def parse(*argv: str) -> tuple[Options, Trainer]:
    return StrictParser((Options, Trainer), aliases=ALIASES, prog="stepjepa train").parse(
        ["--output_dir", "out", *argv]
    )


def message(*argv: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(*argv)
    return str(caught.value)


def test_several_dataclasses_and_required_fields():
    options, trainer = parse("--lbd", "1", "--max_steps", "5")
    assert options == Options(lbd=1.0)
    assert trainer == Trainer(output_dir="out", verbose=False, max_steps=5)
    parser = StrictParser((Options, Trainer))
    with pytest.raises(ConfigError, match="^--output_dir must be given, as a flag or in the --config file$"):
        parser.parse([])


def test_checks_of_the_dataclass_are_config_errors():
    assert message("--max_steps", "0") == "max_steps must not be 0"


def test_explicit():
    parser = StrictParser((Options, Trainer), aliases=ALIASES)
    parser.parse(["--output_dir", "o", "--batch-size", "4", "--lbd", "0.1", "--no_lora", "--regular"])
    assert parser.explicit == {"output_dir", "per_device_train_batch_size", "lbd", "lora", "objective"}
    parser.parse(["--output_dir", "o"])
    assert parser.explicit == {"output_dir"}


@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        (["--batch_size", "4"], "per_device_train_batch_size", 4),
        (["--batch-size=4"], "per_device_train_batch_size", 4),
        (["--batch_size", "4", "--per_device_train_batch_size", "4"], "per_device_train_batch_size", 4),
        (["--steps", "4"], "max_steps", 4),
        (["--regular"], "objective", "regular"),
        (["--regular", "true"], "objective", "regular"),
        (["--regular", "false"], "objective", "step_jepa"),
        (["--regular", "--objective", "regular"], "objective", "regular"),
        (["--regular", "--step_jepa", "false"], "objective", "regular"),
        (["--jepa_l2"], "jepa_loss", "l2"),
        (["--use_lora"], "lora", True),
        (["--no_use_lora"], "lora", False),
        (["--debug", "5"], "verbosity", 5),
        (["--debug", "underflow"], "debug", "underflow"),
        (["--debug", "underflow"], "max_steps", 1),
    ],
)
def test_aliases(argv, name, value):
    options, trainer = parse(*argv)
    assert getattr(trainer if hasattr(trainer, name) else options, name) == value


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (
            ["--step_jepa", "--regular"],
            "--step_jepa sets objective to 'step_jepa', but --regular sets it to 'regular'; keep one of them",
        ),
        (
            ["--objective", "llm_jepa", "--regular"],
            "--objective sets objective to 'llm_jepa', but --regular sets it to 'regular'; keep one of them",
        ),
        (
            ["--infonce", "--lbd", "1", "--jepa_l2"],
            "--infonce sets jepa_loss to 'infonce', but --jepa_l2 sets it to 'l2'; keep one of them",
        ),
        (
            ["--per_device_train_batch_size", "8", "--batch_size", "4"],
            "--per_device_train_batch_size sets per_device_train_batch_size to 8, but --batch_size sets it to 4; "
            "keep one of them",
        ),
        (
            ["--max_steps", "3", "--debug", "x"],
            "--max_steps sets max_steps to 3, but --debug sets it to 1; keep one of them",
        ),
        (["--batch_size", "many"], "--batch_size: expected a whole number, got 'many'"),
        (["--regular", "maybe"], "--regular: expected true or false, got 'maybe'"),
        (["--debug"], "--debug: expected one value"),
        (["--debug", "7"], "--debug: 7 is no level"),
        (["--debug", "1", "2"], "unexpected argument '2' after '--debug 1'; quote a value that has spaces in it"),
        (["--batch_sise", "4"], "unknown flag --batch_sise; did you mean --batch_size?"),
    ],
)  # fmt: skip
def test_alias_errors(argv, text):
    assert message(*argv) == text


def test_mistakes_of_the_caller_are_told():
    with pytest.raises(ValueError, match="alias 'lambda' leads to 'lambd'"):
        StrictParser(Options, aliases={"lambda": "lambd"})
    with pytest.raises(ValueError, match="expected one of regular"):
        StrictParser(Options, aliases={"plain": ("objective", "plain")})
    with pytest.raises(ValueError, match="two option dataclasses have a field 'objective'"):
        StrictParser((Options, Options))


def test_help(capsys):
    parser = StrictParser((Options, Trainer), aliases=ALIASES, prog="stepjepa train", description="Trains.")
    with pytest.raises(SystemExit) as stop:
        parser.parse(["--lbd", "nonsense", "-h"])
    assert stop.value.code == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("usage: stepjepa train [--config FILE] [--option value ...] Trains.")
    assert "--lbd NUMBER Weight of the JEPA loss. (default: 0.1)" in out
    assert (
        "--objective {regular,llm_jepa,step_jepa} Which pairs are made, 100% of them. "
        "(also --step_jepa, --regular; default: step_jepa)"
    ) in out
    assert "--output_dir TEXT (required)" in out
    assert "--shuffle [true|false] (default: True)" in out
    assert "--layers INT [INT ...]" in out and "--color {red,blue} (default: red)" in out
    assert r"--step_separator TEXT (default: '\n\n')" in out
    assert "--config FILE" in out and "--derived" not in out


def test_help_of_some_headings():
    def text(*headings):
        return StrictParser((Options, Trainer), headings=headings).format_help()

    assert "method:" in text("method") and "--predictors" in text("method")
    assert "--max_steps" not in text("method") and "options:" not in text("method")
    both = text("method", "options")
    assert both.index("method:") < both.index("--lbd") < both.index("options:") < both.index("--max_steps")
    with pytest.raises(ValueError, match="no group 'methods'"):
        text("methods")
