"""Flags, commands and metrics that left are answered in one line that names what replaces them."""

from __future__ import annotations

import pytest

import stepjepa
from stepjepa.cli.main import main
from stepjepa.config.parser import StrictParser
from stepjepa.config.spellings import published
from stepjepa.errors import ConfigError
from stepjepa.training.config import JEPAConfig
from stepjepa.training.options import RunOptions


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
