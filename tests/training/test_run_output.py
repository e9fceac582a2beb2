"""What a run shows: bars on a terminal, plain lines in a pipe, nothing on other processes; its summary and result, whose
figures are counted by hand or by the training itself."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest
from transformers import TrainerControl, TrainerState

from stepjepa.cli.main import main
from stepjepa.training.metrics import Bars, RunDisplay, log_line
from stepjepa.training.options import RunOptions
from stepjepa.training.run import conclusion, start_summary, steps_line
from stepjepa.utils.terminal import only_results
from stepjepa.utils.text import clock
from support.rows import step_rows, write
from support.training import trainer_for


@pytest.fixture
def steps(tmp_path, capfd):
    """Trains three steps with its output in a pipe; the lines that it prints about them."""

    def run(flags):
        rows = write(tmp_path / "rows.jsonl", step_rows(16))
        words = (
            f"train --train_file {rows} --output_dir {tmp_path / 'out'} --model_name tiny --step_jepa --batch_size 4"
        )
        assert main(f"{words} --max_steps 3 --save_strategy no {flags}".split()) == 0
        said = capfd.readouterr()
        assert "\x1b" not in said.out + said.err and "\r" not in said.out + said.err
        return [line for line in said.out.splitlines() if line.startswith("step ")]

    return run


def test_a_pipe_gets_plain_lines(steps):
    lines = steps("--logging_steps 1")
    assert [line.split()[1] for line in lines] == ["1/3", "2/3", "3/3"]
    assert re.fullmatch(r"step 3/3  lm \d\.\d{4}  jepa \d\.\d{4}  cos -?\d\.\d{3}  tok/s \d+", lines[2])


def test_the_lowest_debug_level_prints_losses_and_total_of_every_step(steps):
    for number, line in enumerate(steps("--debug 1 --lbd 0.5"), 1):
        step, lm, jepa, total = re.fullmatch(r"step (\d)/3  LM loss: (.+), JEPA loss: (.+), Total: (.+)", line).groups()
        assert int(step) == number
        assert float(total) == pytest.approx(float(lm) + 0.5 * float(jepa), abs=2e-4)
    assert number == 3


def run_a_step(trainer, **state):
    state, control = TrainerState(**state), TrainerControl()
    handler = trainer.callback_handler
    handler.callbacks = [callback for callback in handler.callbacks if isinstance(callback, (Bars, RunDisplay))]
    handler.on_train_begin(trainer.args, state, control)
    state.global_step += 1
    handler.on_log(trainer.args, state, control, {"lm_loss": 2.5, "tokens_per_second": 1234.0})
    handler.on_step_end(trainer.args, state, control)
    handler.eval_dataloader = [1, 2]
    handler.on_prediction_step(trainer.args, state, control)
    handler.on_train_end(trainer.args, state, control)


def test_bars_are_on_a_terminal_in_the_main_process_only(monkeypatch, capsys, tmp_path, tokenizer):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    for lines in (False, True):
        trainer = trainer_for(tmp_path, tokenizer, disable_tqdm=lines)
        run_a_step(trainer, max_steps=4, is_world_process_zero=False)
    with only_results():
        run_a_step(trainer_for(tmp_path, tokenizer, disable_tqdm=False), max_steps=4)
    assert shown.getvalue() == "" and capsys.readouterr().out == ""
    for lines in (True, False):
        assert shown.getvalue() == ""
        run_a_step(trainer_for(tmp_path, tokenizer, disable_tqdm=lines), max_steps=9, global_step=5)
        assert capsys.readouterr().out == "step 6/9  lm 2.5000  tok/s 1234\n"
    assert " 6/9 " in shown.getvalue()
    assert log_line({"lm_loss": 1.23456, "eval_gsm8k": 0.5, "epoch": 1.0}, ["gsm8k"]) == "lm 1.2346  gsm8k 0.500"
    assert clock(3725.4) == "1:02:05"


def test_the_summary_and_the_result(tmp_path, tokenizer):
    options = {"objective": "step_jepa", "gradient_accumulation_steps": 3, "num_train_epochs": 2, "max_steps": -1}
    made = trainer_for(tmp_path, tokenizer, step_rows(24), **options)
    assert steps_line(made) == "4 of 12 examples (4 x 3 accumulated), 2 epochs"
    run = RunOptions(train_file=["rows.jsonl"], model_name="tiny", eval_file="my test.jsonl")
    said = start_summary(made, run, Path("out/checkpoint-2"))
    assert re.search(r"^train  list: 24 rows read, 24 kept, 0 skipped, \d+ pairs$", said, re.MULTILINE)
    assert re.search(r"^model  tiny: ([\d,]+) parameters, \1 trained \(100 %\)$", said, re.MULTILINE)
    assert said.endswith(f"{made.args.output_dir} (resumed from checkpoint-2)")
    made.state.global_step = 3
    said = conclusion(made, run, {"lm_loss": 1.5, "eval_lm_loss": 2.5, "train_runtime": 61.2}).splitlines()
    assert said[1:3] == [
        "done   3 steps in 0:01:01",
        "final  lm 1.5000  eval lm 2.5000",
    ]
    assert said[-1].startswith("load   AutoModelForCausalLM.from_pretrained(")
