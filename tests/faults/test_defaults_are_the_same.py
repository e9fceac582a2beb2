"""Python and the command line have the same defaults."""

from __future__ import annotations

import json

import pytest

import stepjepa
from stepjepa import JEPAConfig, JEPATrainer
from stepjepa.cli.main import main
from stepjepa.config.option import options_of
from stepjepa.errors import ConfigError
from stepjepa.training.options import JEPAOptions, RunOptions, TrainerOptions
from support.answers import write
from support.rows import step_rows


def settings(folder):
    return json.loads((folder / "run.json").read_text())["settings"]


def test_a_preset_trains_at_the_same_rate_from_everywhere(tmp_path, capsys):
    file = write(tmp_path / "rows.jsonl", step_rows(8))
    words = ["--train_file", file, "--model_name", "tiny", "--max_steps", "1", "--disable_tqdm"]
    assert main(["train", *words, "--output_dir", str(tmp_path / "a")]) == 0
    printed = capsys.readouterr().out
    result = stepjepa.train(
        train_file=[file], model_name="tiny", max_steps=1, disable_tqdm=True, output_dir=str(tmp_path / "b")
    )
    assert str(result).splitlines()[1].startswith("done   1 steps") and "\ndone   1 steps" in printed
    a, b = settings(tmp_path / "a"), settings(tmp_path / "b")
    assert a.pop("output_dir") != b.pop("output_dir")
    assert a == b and a["learning_rate"] == 1e-3
    config = JEPAConfig(output_dir=str(tmp_path / "c"), max_steps=1, disable_tqdm=True)
    assert JEPATrainer("tiny", config, file).args.learning_rate == 1e-3
    assert config.learning_rate is None  # the caller's configuration stays as it is
    assert (
        JEPATrainer(result.trainer.model, config, file, None, result.trainer.processing_class).args.learning_rate
        == 2e-5
    )


def test_the_defaults_that_help_shows_are_those_of_a_run():
    real = options_of(JEPAConfig)
    for part in (JEPAOptions, TrainerOptions):
        for name, option in options_of(part).items():
            assert real[name].default == option.default, name


def test_an_unknown_option_is_answered_with_the_nearest(tmp_path):
    with pytest.raises(ConfigError, match="unknown option 'learning_rat'; did you mean 'learning_rate'"):
        stepjepa.train(train_file=["x"], learning_rat=1.0)
    assert not set(options_of(RunOptions)) & set(options_of(JEPAConfig))
