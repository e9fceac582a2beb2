"""Words that users bring: of TRL and Hugging Face, `help`, `version`, --quiet, and those that left."""

import logging
import warnings

import pytest

import stepjepa
from stepjepa.cli.main import main
from stepjepa.config.option import options_of
from stepjepa.config.parser import StrictParser, alias_settings
from stepjepa.config.spellings import PUBLISHED, published
from stepjepa.errors import ConfigError
from stepjepa.modeling.lora import lora_config
from stepjepa.training.config import JEPAConfig
from stepjepa.training.options import JEPAOptions, RunOptions, TrainerOptions
from stepjepa.utils.terminal import only_results, say
from support.rows import write

ALL = (RunOptions, JEPAOptions, TrainerOptions)


def test_every_word_leads_to_an_option_in_the_commands_that_have_it():
    known = {name for dtype in (*ALL, JEPAConfig) for name in options_of(dtype)}
    assert {name for target in PUBLISHED.values() for name, _ in alias_settings(target)} <= known
    assert "packing" in published(*ALL) and "use_peft" not in published(JEPAOptions)
    assert lora_config(8, targets=["all-linear"]).target_modules == lora_config(8).target_modules
    parser = StrictParser(ALL, aliases=published(*ALL))
    assert parser.values(["--no_use_peft"]) == {"lora": False}
    with pytest.raises(ConfigError, match="lora_r sets lora_rank to 8, but lora_rank sets it to 4"):
        stepjepa.train(use_peft=True, lora_r=8, lora_rank=4)


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


# Flags, commands and metrics that left are answered in one line that names what replaces them.
@pytest.mark.parametrize(
    ("command", "answer"),
    [
        (
            "analyze --energy solutions.jsonl --model_name run --best_of 8",
            "--energy: energies of solutions were removed",
        ),
        ("analyze solutions.jsonl --model_name run --energy", "--energy: energies of solutions were removed"),
        ("analyze rows.jsonl --models run --map_layers 1", "--map_layers: the linear map was removed from analyze"),
        ("evaluate run rows.jsonl --metric exact --allow_code_execution", "evaluate RUN --harness mbpp,humaneval"),
        ("train --train_file rows.jsonl --allow_code_execution", "--allow_code_execution: running what a model writes"),
        ("train --train_file rows.jsonl --data_cache cache", "in N processes with --dataset_num_proc N"),
        ("prepare rows.jsonl --engine ray", "--engine: work in a Ray cluster was removed here"),
        ("generate rows.jsonl --ray_replicas 2", "serve copies of the model (vllm serve)"),
        ("evaluate run rows.jsonl --metric exact --data_parallel_size 2", "vllm serve --data-parallel-size N"),
        ("score solutions.jsonl --model_path run", "score: energies of solutions were removed"),
        ("--print-completion bash", "--print-completion: shell completion was removed"),
        ("demo --lbd 0.5", "--lbd: write --set arms.step_jepa.lbd=VALUE"),
        ("check rows.jsonl --seed 3", "--seed: was removed from check"),
        ("prepare rows.jsonl --seed 3", "unknown flag --seed"),
    ],
)
def test_what_left_is_answered(command, answer, capsys):
    assert main(command.split()) == 2
    error = capsys.readouterr().err.strip()
    assert answer in error and error.count("\n") == 0


def test_an_older_resolved_yaml_still_repeats_its_run(tmp_path):
    """It holds every option with its value, those that left with their defaults too."""
    file = tmp_path / "resolved.yaml"
    file.write_text("lbd: 0.5\nallow_code_execution: false\ndata_cache: null\nengine: processes\n")
    parser = StrictParser((RunOptions, JEPAConfig), aliases=published(RunOptions, JEPAConfig))
    assert parser.values(["--config", str(file)]) == {"lbd": 0.5}
    file.write_text("allow_code_execution: true\n")
    with pytest.raises(
        ConfigError, match="resolved.yaml:1: allow_code_execution: running what a model writes was removed"
    ):
        parser.values(["--config", str(file)])


def test_python_gives_the_same_answer():
    with pytest.raises(ConfigError, match="^energy: energies of solutions were removed"):
        stepjepa.analyze(energy=True, solutions="solutions.jsonl", model_name="run")
