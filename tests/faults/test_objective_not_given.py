"""The published command, renamed, trains `llm_jepa`; where the data has steps and no objective is given, a note says so."""

from __future__ import annotations

import json

import pytest

from stepjepa.cli.main import main
from stepjepa.errors import ConfigError

# The published readme's "Custom Training", after `stepjepa train`.
PUBLISHED = """--train_file {file} --model_name tiny --output_dir {folder} --lora --lora_rank 16 --lbd 0.1 --gamma 1.0
--jepa_loss_type cosine --num_epochs 3 --batch_size 4 --grad_accum 4"""
NOTE = "note the data has steps and no objective is given: this trains llm_jepa with K = 0"
MESSAGES = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Step one.\n\nStep two."}]


def command(tmp_path, *words: str, **row) -> list[str]:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f"{json.dumps({'messages': MESSAGES, **row})}\n" for _ in range(4)), encoding="utf-8")
    return ["train", *PUBLISHED.format(file=file, folder=tmp_path / "run").split(), *words]


def test_the_published_command_says_what_it_trains(tmp_path, capsys):
    assert main(command(tmp_path, "--max_steps", "1", total_steps=2)) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note ")]
    assert (
        len(lines) == 1 and " ".join(lines[0].split()).startswith(NOTE) and "--step_jepa trains Step-JEPA" in lines[0]
    )


@pytest.mark.parametrize(
    ("words", "row", "said"),
    [
        ([], {"steps": ["Step one.", "Step two."]}, True),
        (["--steps_column", "parts"], {"parts": ["Step one.", "Step two."]}, True),
        (["--config", "run.yaml"], {"total_steps": 2}, True),
        ([], {}, False),
        ([], {"total_steps": 1, "steps": ["Step one. Step two."]}, False),
        (["--step_jepa"], {"total_steps": 2}, False),
        (["--regular"], {"total_steps": 2}, False),
        (["--objective", "llm_jepa"], {"total_steps": 2}, False),
        (["--config", "objective.yaml"], {"total_steps": 2}, False),
    ],
)
def test_the_note_is_said_where_no_objective_is_given_and_the_data_has_steps(
    tmp_path, capsys, monkeypatch, words, row, said
):
    def nothing(*arguments):
        raise ConfigError("enough")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("stepjepa.training.run.run_training", nothing)
    (tmp_path / "run.yaml").write_text("seed: 7\n")
    (tmp_path / "objective.yaml").write_text("objective: llm_jepa\n")
    assert main(command(tmp_path, *words, **row)) == 2
    assert (NOTE in " ".join(capsys.readouterr().out.split())) == said
