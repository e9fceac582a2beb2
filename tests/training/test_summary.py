"""The summary that a run begins with: its figures against counts made by hand or by the training itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stepjepa.modeling.load import load_model
from stepjepa.training.config import JEPAConfig
from stepjepa.training.options import RunOptions
from stepjepa.training.run import conclusion, start_summary, steps_line
from stepjepa.training.trainer import JEPATrainer
from support.rows import step_rows

ROWS = step_rows(24)


@pytest.fixture
def trainer(tokenizer, tmp_path):
    def make(**options):
        options = {"objective": "step_jepa", "predictors": 2, "per_device_train_batch_size": 4, **options}
        config = JEPAConfig(output_dir=str(tmp_path / "out"), disable_tqdm=True, save_strategy="no", **options)
        return JEPATrainer(load_model("tiny", tokenizer), config, ROWS, None, tokenizer)

    return make


def test_steps(trainer):
    made = trainer(gradient_accumulation_steps=3, num_train_epochs=2)
    assert steps_line(made) == "4 of 12 examples (4 x 3 accumulated), 2 epochs"


def test_lines(trainer):
    made = trainer(save_steps=500, max_steps=3)
    run = RunOptions(train_file=["rows.jsonl"], model_name="tiny", eval_file="my test.jsonl")
    said = start_summary(made, run, Path("out/checkpoint-2"))
    labels = [line.split(" ")[0] for line in said.splitlines() if not line.startswith(" ")]
    assert labels == ["train", "model", "loss", "steps", "output"]
    assert re.search(r"^train  .*24 rows read, 24 kept, 0 skipped, \d+ pairs$", said, re.MULTILINE)
    assert re.search(r"^model  tiny: ([\d,]+) parameters, \1 trained \(100 %\)$", said, re.MULTILINE)
    assert said.endswith(f"{made.args.output_dir} (resumed from checkpoint-2)")
    made.state.log_history = [{"tokens_per_second": speed} for speed in (10.0, 2500.0, 3000.0)]
    made.state.global_step = 3
    said = conclusion(made, run, {"lm_loss": 1.5, "eval_lm_loss": 2.5, "train_runtime": 61.2}).splitlines()
    assert said[1:3] == [
        "done   3 steps in 0:01:01, 2,500 tokens/s (median of the log)",
        "final  lm 1.5000  eval lm 2.5000",
    ]
    assert said[-1].startswith("load   AutoModelForCausalLM.from_pretrained(")
