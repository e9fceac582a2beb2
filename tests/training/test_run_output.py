"""What a run shows: bars in a pseudo terminal, plain lines in a pipe, nothing on other processes; its summary and result,
whose figures are counted by hand or by the training itself."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from transformers import TrainerControl, TrainerState

from stepjepa.cli.main import main
from stepjepa.modeling.load import load_model
from stepjepa.training.config import JEPAConfig
from stepjepa.training.metrics import RunDisplay, log_line
from stepjepa.training.options import RunOptions
from stepjepa.training.run import conclusion, start_summary, steps_line
from stepjepa.training.trainer import JEPATrainer
from stepjepa.utils.terminal import only_results
from stepjepa.utils.text import clock
from support.rows import step_rows, write

FLAGS = "--model_name tiny --step_jepa --batch_size 4 --logging_steps 1 --save_strategy no"
FLAGS += " --eval_strategy steps --eval_steps 2"
LOSSES = r"  lm \d\.\d{4}  jepa \d\.\d{4}  cos -?\d\.\d{3}  tok/s \d+"


@pytest.fixture
def command(tmp_path):
    train, held_out = write(tmp_path / "train.jsonl", step_rows(16)), write(tmp_path / "eval.jsonl", step_rows(6))
    files = ["--train_file", train, "--eval_file", held_out, "--output_dir", str(tmp_path / "out")]
    return [sys.executable, "-m", "stepjepa", "train", *files, *FLAGS.split()]


def on_a_terminal(command, interrupted_at):
    """What a command writes to a terminal, and its status; SIGINT after these bytes."""
    leader, follower = pty.openpty()
    fcntl.ioctl(leader, termios.TIOCSWINSZ, struct.pack("4H", 24, 100, 0, 0))
    environment = {**os.environ, "TERM": "xterm"}
    process = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    written = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # the last process on the terminal has gone
            break
        if not part:
            break
        written += part
        if interrupted_at is not None and interrupted_at in written:
            process.send_signal(signal.SIGINT)
            interrupted_at = None
    os.close(leader)
    return written.decode(), process.wait(timeout=60)


def test_ctrl_c_on_a_terminal_with_bars(command):
    written, status = on_a_terminal([*command, "--max_steps", "5000"], b"step 3/5000")
    assert status == 130 and "interrupted" in written and "Traceback" not in written
    assert re.search(rf"step 2/5000{LOSSES}\s", written) and re.search(r" 2/5000 \[", written)
    assert re.search(r"step 2/5000  eval lm \d\.\d{4}  eval jepa \d\.\d{4}\s", written) and " 1/1 " in written


def test_a_pipe_gets_plain_lines(command, capfd):
    assert main([*command[3:], "--max_steps", "3"]) == 0
    said = capfd.readouterr()
    assert "\x1b" not in said.out + said.err and "\r" not in said.out + said.err
    steps = [line for line in said.out.splitlines() if line.startswith("step ") and "eval" not in line]
    assert [line.split()[1] for line in steps] == ["1/3", "2/3", "3/3"]
    assert re.fullmatch(rf"step 3/3{LOSSES}", steps[2])


def test_the_lowest_debug_level_prints_losses_and_total_of_every_step(command, capfd):
    at = command.index("--logging_steps")
    assert main([*command[3:at], *command[at + 2 :], "--max_steps", "3", "--debug", "1", "--lbd", "0.5"]) == 0
    lines = re.findall(r"^step (\d)/3  LM loss: (\S+), JEPA loss: (\S+), Total: (\S+)$", capfd.readouterr().out, re.M)
    assert [step for step, *_ in lines] == ["1", "2", "3"]
    for _, lm, jepa, total in lines:
        assert float(total) == pytest.approx(float(lm) + 0.5 * float(jepa), abs=2e-4)


def run_a_step(view, state):
    control = TrainerControl()
    view.on_train_begin(None, state, control)
    state.global_step += 1
    view.on_log(None, state, control, logs={"lm_loss": 2.5, "tokens_per_second": 1234.0})
    view.on_step_end(None, state, control)
    view.on_prediction_step(None, state, control, eval_dataloader=[1, 2])
    view.on_train_end(None, state, control)


def test_bars_are_on_a_terminal_in_the_main_process_only(monkeypatch, capsys):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    for lines in (False, True):
        run_a_step(RunDisplay(lines), TrainerState(max_steps=4, is_world_process_zero=False))
    with only_results():
        run_a_step(RunDisplay(), TrainerState(max_steps=4, is_world_process_zero=True))
    assert shown.getvalue() == "" and capsys.readouterr().out == ""
    run_a_step(RunDisplay(), TrainerState(max_steps=9, global_step=5, is_world_process_zero=True))
    assert " 6/9 " in shown.getvalue()
    assert capsys.readouterr().out == "step 6/9  lm 2.5000  tok/s 1234\n"
    assert log_line({"lm_loss": 1.23456, "eval_gsm8k": 0.5, "epoch": 1.0}, ["gsm8k"]) == "lm 1.2346  gsm8k 0.500"
    assert clock(3725.4) == "1:02:05"


# The summary and the result


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
    made = trainer(save_steps=500, max_steps=3, learning_rate=1e-3)
    run = RunOptions(train_file=["rows.jsonl"], model_name="tiny", eval_file="my test.jsonl")
    said = start_summary(made, run, Path("out/checkpoint-2"))
    labels = [line.split(" ")[0] for line in said.splitlines() if not line.startswith(" ")]
    assert labels == ["train", "model", "loss", "steps", "output"]
    assert re.search(r"^train  list: 24 rows read, 24 kept, 0 skipped, \d+ pairs$", said, re.MULTILINE)
    usual = [line for line in said.splitlines()[:-1] if "without a pair" not in line]  # the last one holds a path
    assert len(usual) < 7 and max(map(len, usual)) <= 80
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
