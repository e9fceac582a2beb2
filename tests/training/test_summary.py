"""The summary that a run begins with: its figures against counts made by hand or by the training itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stepjepa.modeling.flops import batch_tokens
from stepjepa.modeling.load import load_model
from stepjepa.training.config import JEPAConfig
from stepjepa.training.run_options import RunOptions
from stepjepa.training.summary import (
    checkpoints_line,
    conclusion,
    first_batches,
    labelled,
    start_summary,
    steps_line,
    tokens_line,
)
from stepjepa.training.trainer import JEPATrainer
from support.rows import step_rows

ROWS = step_rows(24)


@pytest.fixture
def trainer(tokenizer, tmp_path):
    def make(peft=None, rows=ROWS, **options):
        options = {"objective": "step_jepa", "predictors": 2, "per_device_train_batch_size": 4, **options}
        config = JEPAConfig(output_dir=str(tmp_path / "out"), disable_tqdm=True, save_strategy="no", **options)
        return JEPATrainer(load_model("tiny", tokenizer), config, rows, None, tokenizer, peft)

    return make


@pytest.mark.parametrize("options", [{"forward": "two_pass"}, {"target_grad": False}, {"objective": "regular"}])
def test_tokens_by_kind_are_those_that_are_trained_on(trainer, options):
    made = trainer(**options)
    counted = [batch_tokens(batch) for batch in first_batches(made)]
    filled = sum(sum(kinds.values()) - kinds["padding"] for kinds in counted)
    trained = sum(int(rows.filled.sum()) for batch in made.get_train_dataloader() for rows in batch.every_rows)
    assert len(counted) == 6 and filled == trained
    assert all((kinds["branch"] > 0) == (options != {"objective": "regular"}) for kinds in counted)


def test_steps_and_tokens_of_an_optimizer_step(trainer):
    made = trainer(gradient_accumulation_steps=3, num_train_epochs=2, rows=ROWS[:24])
    assert steps_line(made) == "4 of 12 examples (4 x 3 accumulated), 2 epochs"
    batches = first_batches(made)
    total = sum(sum(batch_tokens(batch).values()) for batch in batches) * 3 / 6
    assert tokens_line(made, batches).startswith(f"{total:,.0f} a step: trunk ")
    assert tokens_line(made, []) == "a step: not known before the stream is read"


def test_lines(trainer):
    made = trainer(rows=ROWS, save_steps=500, max_steps=3)
    run = RunOptions(train_file=["rows.jsonl"], model_name="tiny", eval_file="my test.jsonl")
    said = start_summary(made, run, Path("out/checkpoint-2"))
    labels = [line.split(" ")[0] for line in said.splitlines() if not line.startswith(" ")]
    assert labels == ["train", "model", "loss", "steps", "tokens", "output", "words:"]
    said, legend = said.split("\nwords:\n")
    assert re.search(r"^train  .*24 rows read, 24 kept, 0 skipped, \d+ pairs$", said, re.MULTILINE)
    assert re.search(r"^model  tiny: ([\d,]+) parameters, \1 trained \(100 %\)$", said, re.MULTILINE)
    assert "(resumed from checkpoint-2)" in said and said.endswith("\n       no checkpoints")
    meant = " ".join(legend.split())
    for word in "pairs p50 labelled K cosine forward trunk branch target padding lm jepa cos tok/s".split():
        assert f"{word}: " in meant, word
    assert (
        "K: learned predictor tokens after a source view; " in meant and "eval " not in meant and "views:" not in meant
    )
    assert max(map(len, legend.splitlines())) <= 80
    made.state.log_history = [{"tokens_per_second": speed} for speed in (10.0, 2500.0, 3000.0)]
    made.state.global_step = 3
    said = conclusion(made, run, {"lm_loss": 1.5, "eval_lm_loss": 2.5, "train_runtime": 61.2}).splitlines()
    assert said[1:3] == [
        "done   3 steps in 0:01:01, 2,500 tokens/s (median of the log)",
        "final  lm 1.5000  eval lm 2.5000",
    ]
    assert said[-1].startswith("load   AutoModelForCausalLM.from_pretrained(")


def test_only_words_that_are_printed_are_explained(trainer):
    run = RunOptions(train_file=["rows.jsonl"], model_name="tiny")
    legend = " ".join(start_summary(trainer(objective="regular"), run, None).split("\nwords:\n")[1].split())
    assert "trunk: the chat itself" in legend and "lm: LM loss" in legend
    assert not any(f"{word}: " in legend for word in ("K", "cosine", "branch", "target", "jepa", "cos"))


def test_long_lines_are_broken_on_a_terminal_alone(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    line = "a word after the other until the line is full"
    assert labelled([("label", [line])]) == [f"label  {line}"]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert labelled([("label", [line])]) == ["label  a word after the other until the\n         line is full"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"save_strategy": "no"}, "no checkpoints"),
        ({"save_strategy": "epoch"}, "checkpoint-N every epoch; all are kept"),
        (
            {"save_steps": 0.1, "save_total_limit": 2},
            "checkpoint-N every 10% of the run and at the end; the newest 2 are kept",
        ),
    ],
)
def test_checkpoints(tmp_path, options, words):
    assert checkpoints_line(JEPAConfig(output_dir=str(tmp_path), **options)) == words
