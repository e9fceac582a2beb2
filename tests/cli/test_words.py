"""Words that users of TRL and Hugging Face type: flags, YAML keys, `help`, `version`, --quiet."""

import logging
import warnings

import pytest

import stepjepa
from stepjepa.cli.main import main
from stepjepa.config.option import options_of
from stepjepa.config.parser import Answer, StrictParser, alias_settings
from stepjepa.config.spellings import PUBLISHED, published
from stepjepa.errors import ConfigError
from stepjepa.modeling.load import lora_config
from stepjepa.training.config import JEPAConfig
from stepjepa.training.options import JEPAOptions
from stepjepa.training.run_options import RunOptions, TrainerOptions
from stepjepa.utils.terminal import only_results, say
from support.rows import write

ALL = (RunOptions, JEPAOptions, TrainerOptions)


@pytest.fixture
def parser():
    return StrictParser(ALL, aliases=published(*ALL))


TRL = (
    "--model_name_or_path m --dataset_name d:main --dataset_train_split t --dataset_test_split v --use_peft --lora_r 8"
)
TRL += " --lora_target_modules all-linear --max_seq_length 512 --lr 1e-4 --epochs 2 --assistant_only_loss"
OURS = "--model_name m --train_file d:main --dataset_split t --eval_split v --lora --lora_rank 8"
OURS += (
    " --lora_target_modules all-linear --max_length 512 --learning_rate 1e-4 --num_train_epochs 2 --labels assistant"
)


def test_words_that_mean_the_same(parser, tmp_path):
    assert parser.values(TRL.split()) == parser.values(OURS.split())
    file = tmp_path / "trl.yaml"
    file.write_text("dataset_name: d\nuse_peft: true\nlora_r: 8\nassistant_only_loss: False\nepochs: 2\n")
    found = parser.values(["--config", str(file)])
    assert found == {"train_file": ["d"], "lora": True, "lora_rank": 8, "labels": "all", "num_train_epochs": 2.0}
    assert parser.values(["--assistant_only_loss", "True"]) == {"labels": "assistant"}
    assert parser.values(["--no_use_peft"]) == {"lora": False}
    assert lora_config(8, targets=["all-linear"]).target_modules == lora_config(8).target_modules
    with pytest.raises(ConfigError, match="lora_r sets lora_rank to 8, but lora_rank sets it to 4"):
        stepjepa.train(use_peft=True, lora_r=8, lora_rank=4)
    # Each leads to options that exist, in the commands that have them.
    known = {name for dtype in (*ALL, JEPAConfig) for name in options_of(dtype)}
    assert {name for target in PUBLISHED.values() for name, _ in alias_settings(target)} <= known
    assert "packing" in published(*ALL) and "use_peft" not in published(JEPAOptions)


ANSWERS = [name for name, target in PUBLISHED.items() if isinstance(target, Answer)]


@pytest.mark.parametrize("name", ANSWERS)
def test_words_that_are_answered(name, tmp_path, capsys):
    assert main(["train", f"--{name}", "other", "--output_dir", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"stepjepa train: error: --{name}: ")
    assert f"--{PUBLISHED[name].option}" in line or "{option}" not in PUBLISHED[name].text
    file = tmp_path / "trl.yaml"
    file.write_text(f"lora: true\n{name}: other\n")
    assert main(["train", "--config", str(file)]) == 2
    assert f"error: {file}:2: {name}: " in capsys.readouterr().err
    assert {"packing", "completion_only_loss"} <= set(ANSWERS)


def test_mistakes_in_words(capsys):
    assert main(["train", "--assistant_only_loss=maybe"]) == 2
    assert "expected one of true, false, got 'maybe'" in capsys.readouterr().err
    assert main(["train", "--use_peft", "--no_lora"]) == 2
    assert "--use_peft sets lora to True, but --no_lora sets it to False" in capsys.readouterr().err


def test_help_and_version_as_commands(capsys):
    for command in ("prepare", "analyze"):
        assert main([command, "--help"]) == 0 == main(["help", command])
        both = capsys.readouterr().out
        assert both[: len(both) // 2] == both[len(both) // 2 :] != ""
    assert main(["help"]) == 0 == main(["version"])
    said = capsys.readouterr().out
    assert "stepjepa help COMMAND" in said and said.endswith(f"\nstepjepa {stepjepa.__version__}\n")
    for word in ("trian", "sft", "finetune"):
        assert main(["help", word]) == 2
        assert f"unknown command {word!r}; did you mean 'train'?" in capsys.readouterr().err
    assert main(["dpo", "--help"]) == 2
    assert "did you mean" not in capsys.readouterr().err


def test_completion_is_answered(capsys):
    assert main(["--print-completion", "bash"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("stepjepa: error: --print-completion: ") and "removed" in line


def test_quiet_commands_print_errors_and_results(tmp_path, capfd):
    rows = [{"question": f"{n} + 1?", "answer": f"Add one.\n\nIt is {n + 1}."} for n in range(4)]
    file, run = write(tmp_path / "rows.jsonl", rows), tmp_path / "run"
    flags = f"--train_file {file} --model_name tiny --max_steps 1 --logging_steps 1 --step_jepa --output_dir {run}"
    assert main(["train", "--quiet", *flags.split()]) == 0
    said = capfd.readouterr()
    assert said.err == "" and said.out.strip().startswith("done ") and "step 1/1" not in said.out
    flags = ["--metric", "exact", "--max_new_tokens", "2"]
    assert main(["evaluate", str(run), str(file), *flags, "--quiet"]) == 0
    said = capfd.readouterr()
    assert said.err == "" and said.out.startswith("exact ")
    assert main(["evaluate", "--quiet", str(run), str(tmp_path / "no.jsonl"), *flags]) == 2
    assert "no such file" in capfd.readouterr().err
    assert main(["--quiet", "evaluate", str(run), str(file), *flags]) == 0, "in front of the command too"
    assert capfd.readouterr().err == ""
    assert main(["evaluate", str(run), "--quiet=true"]) == 2
    assert capfd.readouterr().err == "stepjepa evaluate: error: --quiet takes no value\n"
    say("loud again")
    assert capfd.readouterr().out == "loud again\n"


def test_only_results_from_python(capsys, caplog):
    log = logging.getLogger("stepjepa.test_words")
    with warnings.catch_warnings(record=True) as caught, only_results():
        say("progress")
        warnings.warn("of others", stacklevel=1)
        log.warning("a warning")
        log.error("an error")
        with only_results(False):
            say("progress")
    assert capsys.readouterr().out == "" and caught == []
    assert [one.getMessage() for one in caplog.records] == ["an error"]
    log.warning("a warning")
    assert len(caplog.records) == 2
