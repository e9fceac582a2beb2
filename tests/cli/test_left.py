"""Flags, commands and metrics that left are answered in one line that names what replaces them."""

from __future__ import annotations

import pytest

import stepjepa
from stepjepa.cli.main import main
from stepjepa.errors import ConfigError


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        (
            "analyze --energy solutions.jsonl --model_name run --best_of 8",
            "--energy: energies of solutions were removed",
        ),
        ("analyze solutions.jsonl --model_name run --energy", "--energy: energies of solutions were removed"),
        ("analyze rows.jsonl --models run --map_layers 1", "--map_layers: the linear map was removed from analyze"),
        ("score solutions.jsonl --model_path run", "score: energies of solutions were removed"),
    ],
)
def test_what_left_is_answered(command, answer, capsys):
    assert main(command.split()) == 2
    error = capsys.readouterr().err.strip()
    assert answer in error and error.count("\n") == 0


def test_python_gives_the_same_answer():
    with pytest.raises(ConfigError, match="^energy: energies of solutions were removed"):
        stepjepa.analyze(energy=True, solutions="solutions.jsonl", model_name="run")
