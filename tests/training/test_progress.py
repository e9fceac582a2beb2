"""What a run shows: one bar in a pseudo terminal, plain lines in a pipe, nothing on other processes."""

from __future__ import annotations

import io
import logging
import os
import pty
import re
import signal
import subprocess
import sys

import pytest
from transformers import TrainerControl, TrainerState

from stepjepa.cli.main import main
from stepjepa.training.display import RunDisplay, clock, short
from stepjepa.utils.terminal import only_results
from support.rows import step_rows, write

FLAGS = "--model_name tiny --step_jepa --batch_size 4 --logging_steps 1 --save_strategy no"
FLAGS += " --eval_strategy steps --eval_steps 2"
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
BAR = re.compile(r"3/3 \S+ +lm \d\.\d{4}  jepa \d\.\d{4}  cos -?\d\.\d{3}  tok/s \d+ +0:\d\d:\d\d")


@pytest.fixture
def command(tmp_path):
    train, held_out = write(tmp_path / "train.jsonl", step_rows(16)), write(tmp_path / "eval.jsonl", step_rows(6))
    files = ["--train_file", train, "--eval_file", held_out, "--output_dir", str(tmp_path / "out")]
    return [sys.executable, "-m", "stepjepa", "train", *files, *FLAGS.split()]


ENVIRONMENT = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    ENVIRONMENT.pop(name, None)


def interrupted(command, at):
    """What a command writes to a terminal, and its status; SIGINT after the bytes `at`."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=ENVIRONMENT)
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
        if at is not None and at in written:
            process.send_signal(signal.SIGINT)
            at = None
    os.close(leader)
    return written.decode(), process.wait(timeout=60)


def test_a_terminal_shows_one_bar(command, terminal, monkeypatch):
    shown = terminal()
    monkeypatch.setattr(sys, "stdout", shown)
    assert main([*command[3:], "--max_steps", "3"]) == 0
    written = shown.getvalue()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written).replace("\r", "")
    assert BAR.search(text), text[-1500:]
    assert re.search(r"step 2/3  eval lm \d\.\d{4}  eval jepa \d\.\d{4}\n", text)
    assert not re.search(r"step \d/3  lm", text)  # those are in the bar
    assert "eval 1/1" in text and "-:--:--" in text
    assert written.rindex(SHOW) > written.rindex(HIDE)
    assert text.index("0/3") < text.index("\ndone ") < text.index("\nnext ")


def test_a_pipe_gets_plain_lines(command, capfd):
    assert main([*command[3:], "--max_steps", "3"]) == 0
    said = capfd.readouterr()
    assert "\x1b" not in said.out + said.err and "\r" not in said.out + said.err
    steps = [line for line in said.out.splitlines() if line.startswith("step ") and "eval" not in line]
    assert [line.split()[1] for line in steps] == ["1/3", "2/3", "3/3"]
    assert re.fullmatch(r"step 3/3  lm \d\.\d{4}  jepa \d\.\d{4}  cos -?\d\.\d{3}  tok/s \d+", steps[2])


def test_ctrl_c_leaves_the_terminal_as_it_was(command):
    written, status = interrupted([*command, "--max_steps", "5000"], at=b"2/5000")
    assert status == 130
    assert "interrupted" in written and "Traceback" not in written
    assert written.rindex(SHOW) > written.rindex(HIDE)


class Terminal(io.StringIO):
    """Standard error that says that it is a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")

    def install():  # in the test itself: pytest puts its own stream there before
        shown = Terminal()
        monkeypatch.setattr(sys, "stderr", shown)
        return shown

    return install


LOGS = {"lm_loss": 2.5, "jepa_loss": 0.25, "cosine_similarity": 0.75, "tokens_per_second": 1234.0}


def run_a_step(view, state):
    control = TrainerControl()
    view.on_train_begin(None, state, control)
    state.global_step += 1
    view.on_log(None, state, control, logs=LOGS)
    view.on_step_end(None, state, control)
    view.on_prediction_step(None, state, control, eval_dataloader=[1, 2])
    view.end_evaluation()
    view.close()


def test_a_resumed_run_starts_where_it_was_and_other_processes_show_nothing(terminal, capsys):
    shown = terminal()
    for lines in (False, True):
        run_a_step(RunDisplay(lines), TrainerState(max_steps=4, is_world_process_zero=False))
    assert shown.getvalue() == "" and capsys.readouterr().out == ""
    run_a_step(RunDisplay(), TrainerState(max_steps=9, global_step=5, is_world_process_zero=True))
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.getvalue())
    assert "5/9" in text and "6/9" in text and "0/9" not in text
    assert "lm 2.5000  jepa 0.2500  cos 0.750  tok/s 1234" in text
    assert capsys.readouterr().out == "step 6/9  lm 2.5000  jepa 0.2500  cos 0.750  tok/s 1234\n"  # no terminal there


def test_losses_can_be_kept_and_nothing_shown(terminal, monkeypatch):
    shown = terminal()
    monkeypatch.setattr(sys, "stdout", shown)
    for keep in (False, True):
        run_a_step(RunDisplay(keep_losses=keep), TrainerState(max_steps=9, is_world_process_zero=True))
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.getvalue())
        assert ("step 1/9  lm 2.5000  jepa 0.2500" in text) == keep
        assert text.count("1/9 ") >= 1 + keep and "cos 0.750  tok/s 1234" in text  # in the bar, too
    shown.truncate(0)
    shown.seek(0)
    with only_results():
        run_a_step(RunDisplay(keep_losses=True), TrainerState(max_steps=9, is_world_process_zero=True))
        run_a_step(RunDisplay(disable_tqdm=True), TrainerState(max_steps=9, is_world_process_zero=True))
    assert shown.getvalue() == ""


def test_what_others_print_stands_above_the_bar(terminal):
    shown = terminal()
    handler = logging.StreamHandler()  # holds the stream of now
    logger = logging.getLogger("stepjepa.test_view")
    logger.addHandler(handler)
    view = RunDisplay()
    state = TrainerState(max_steps=3, is_world_process_zero=True)
    try:
        view.on_train_begin(None, state, TrainerControl())
        assert sys.stderr is not shown
        logger.warning("beware")
        view.close()
        assert sys.stderr is shown and handler.stream is shown
    finally:
        logger.removeHandler(handler)
    # The bar's line is cleared before, and it is drawn again below.
    assert re.search(r"\r\x1b\[2K(\x1b\[[0-9;]*m)*beware", shown.getvalue())
    assert "0/3" in shown.getvalue().partition("beware")[2]


@pytest.mark.parametrize(("variable", "value"), [("TERM", "dumb"), ("TTY_COMPATIBLE", "0"), ("TERM", "xterm")])
def test_where_there_is_a_bar(terminal, monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    terminal()
    assert RunDisplay().has_bar == (value == "xterm") and not RunDisplay(disable_tqdm=True).has_bar

    assert short({"lm_loss": 1.23456, "eval_gsm8k": 0.5, "epoch": 1.0}, ["gsm8k"]) == "lm 1.2346  gsm8k 0.500"
    assert clock(3725.4) == "1:02:05"
