"""Options without effect, defaults that differ between Python and the command line, and values that no run can use."""

import json
import math

import pytest

import stepjepa
from stepjepa import JEPAConfig, JEPATrainer
from stepjepa.cli.main import main
from stepjepa.config.option import options_of
from stepjepa.errors import ConfigError
from stepjepa.study.reading import read_options
from stepjepa.study.spec import StudyOptions
from stepjepa.training.options import JEPAOptions, RunOptions, TrainerOptions
from support.rows import step_rows, write


def test_a_preset_trains_at_the_same_rate_from_everywhere(tmp_path, capsys):
    def settings(name):
        found = json.loads((tmp_path / name / "run.json").read_text())["settings"]
        return {option: value for option, value in found.items() if option != "output_dir"}

    file = write(tmp_path / "rows.jsonl", step_rows(8))
    words = ["--train_file", file, "--model_name", "tiny", "--max_steps", "1", "--disable_tqdm"]
    assert main(["train", *words, "--output_dir", str(tmp_path / "a")]) == 0
    printed = capsys.readouterr().out
    given = {"max_steps": 1, "disable_tqdm": True}
    result = stepjepa.train(train_file=[file], model_name="tiny", output_dir=str(tmp_path / "b"), **given)
    assert str(result).splitlines()[1].startswith("done   1 step in") and "\ndone   1 step in" in printed
    assert settings("a") == settings("b") and settings("a")["learning_rate"] == 1e-3
    config = JEPAConfig(output_dir=str(tmp_path / "c"), **given)
    assert JEPATrainer("tiny", config, file).args.learning_rate == 1e-3
    own = JEPATrainer(result.trainer.model, config, file, None, result.trainer.processing_class)
    assert own.args.learning_rate == 2e-5
    assert config.learning_rate is None  # the caller's configuration stays as it is


def test_the_defaults_that_help_shows_are_those_of_a_run():
    real = options_of(JEPAConfig)
    shown = options_of(JEPAOptions) | options_of(TrainerOptions)
    assert {name: real[name].default for name in shown} == {name: option.default for name, option in shown.items()}
    assert not set(options_of(RunOptions)) & set(real)


STUDY = """\
data: builtin
base: {model_name: tiny, max_steps: 4}
arms: {regular: {objective: regular}, step_jepa: {objective: step_jepa, lbd: 0.5}}
seeds: [1, 2, 3]
mini: {seeds: [7], base: {max_steps: 2}}
"""
BLOCKS = "blocks: {small: {base: {max_steps: 3}, seeds: [5]}, large: {}}\n"


def test_what_is_set_for_a_study_is_read_by_its_runs_or_refused(tmp_path):
    file = tmp_path / "study.yaml"

    def blocks(*overrides, text=STUDY, **options):
        file.write_text(text)
        return read_options(StudyOptions(str(file), overrides=list(overrides), **options)).blocks

    assert blocks(mini=True)[0].seeds == (7,)
    assert blocks("seeds=[4, 5]", mini=True)[0].seeds == (4, 5)
    assert blocks(mini=True, seeds=[9])[0].seeds == (9,)
    assert blocks("blocks.small.seeds=[4]", text=STUDY + BLOCKS)[0].seeds == (4,)
    assert blocks("base.lbd=1", text=STUDY + BLOCKS)[1].base["lbd"] == 1  # no block says anything of it
    for override, text, said in [
        ("mini.seeds=[4]", STUDY, "--set mini.seeds=.*: study: unknown key 'mini': with --mini, --set"),
        ("base.max_steps=9", STUDY + BLOCKS, "block small has its own value; write blocks.small.base.max_steps="),
    ]:
        with pytest.raises(ConfigError, match=said):
            blocks(override, text=text)


@pytest.mark.parametrize("value", [math.nan, 10**20, -2])
def test_no_number_of_a_run_is_beyond_use(value, tmp_path):
    for name in ("save_steps", "per_device_train_batch_size", "max_grad_norm", "seed", "warmup_steps", "learning_rate"):
        with pytest.raises(ConfigError, match=f"^{name} is "):
            JEPAConfig(output_dir=str(tmp_path), **{name: value})
