"""What a run shows: one bar in a pseudo terminal, plain lines in a pipe, nothing on other processes."""

from __future__ import annotations

import json
import logging
import os
import pty
import re
import signal
import subprocess
import sys

import pytest
from transformers import TrainerControl, TrainerState

from stepjepa.training.progress import RunDisplay, clock, short
from support.rows import step_rows

FLAGS = "--model_name tiny --step_jepa --batch_size 4 --logging_steps 1 --save_strategy no"
FLAGS += " --eval_strategy steps --eval_steps 2"
ESCAPE, HIDE, SHOW = b"\x1b", b"\x1b[?25l", b"\x1b[?25h"
BAR = re.compile(r"3/3 \S+ +lm \d\.\d{4}  jepa \d\.\d{4}  cos -?\d\.\d{3}  tok/s \d+ +0:\d\d:\d\d taken")


@pytest.fixture
def command(tmp_path):
    for name, rows in (("train", step_rows(16)), ("eval", step_rows(6))):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = ["--train_file", str(tmp_path / "train.jsonl"), "--eval_file", str(tmp_path / "eval.jsonl")]
    command = [sys.executable, "-m", "stepjepa", "train", *files, "--output_dir", str(tmp_path / "out")]
    return [*command, *FLAGS.split()]


ENVIRONMENT = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    ENVIRONMENT.pop(name, None)


def in_terminal(command, interrupt_at=None):
    """What a command writes to a terminal, and its status; SIGINT after the bytes `interrupt_at`."""
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
        if interrupt_at is not None and interrupt_at in written:
            process.send_signal(signal.SIGINT)
            interrupt_at = None
    os.close(leader)
    return written, process.wait(timeout=60)


def test_a_terminal_shows_one_bar(command):
    written, status = in_terminal([*command, "--max_steps", "3"])
    assert status == 0, written.decode()[-2000:]
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.decode()).replace("\r", "")
    assert BAR.search(text), text[-1500:]
    assert re.search(r"step 2/3  eval lm \d\.\d{4}  eval jepa \d\.\d{4}\n", text)
    assert not re.search(r"step \d/3  lm", text)  # those are in the bar
    assert "eval 1/1" in text and "-:--:-- left" in text
    assert written.rindex(SHOW) > written.rindex(HIDE)
    assert text.index("0/3") < text.index("\ndone ") < text.index("\nnext ")


def test_a_pipe_gets_plain_lines(command):
    environment = {**ENVIRONMENT, "FORCE_COLOR": "1"}
    done = subprocess.run([*command, "--max_steps", "3"], capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    for stream in (done.stdout, done.stderr):
        assert ESCAPE not in stream and b"\r" not in stream
    lines = done.stdout.decode().splitlines()
    steps = [line for line in lines if line.startswith("step ") and "eval" not in line]
    assert [line.split()[1] for line in steps] == ["1/3", "2/3", "3/3"]
    form = r"step 3/3  lm \d\.\d{4}  jepa \d\.\d{4}  cos -?\d\.\d{3}  tok/s \d+"
    assert re.fullmatch(form, steps[2])


def test_ctrl_c_leaves_the_terminal_as_it_was(command):
    written, status = in_terminal([*command, "--max_steps", "5000"], interrupt_at=b"2/5000")
    assert status == 130
    assert b"interrupted" in written and b"Traceback" not in written
    assert written.rindex(SHOW) > written.rindex(HIDE)


class Terminal:
    """Standard error that says that it is a terminal."""

    def __init__(self):
        self.written = ""

    def write(self, text):
        self.written += text
        return len(text)

    def flush(self):
        pass

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


def run_steps(view, state, logs):
    control = TrainerControl()
    view.on_train_begin(None, state, control)
    for entry in logs:
        state.global_step += 1
        view.on_log(None, state, control, logs=entry)
        view.on_step_end(None, state, control)
    view.on_prediction_step(None, state, control, eval_dataloader=[1, 2])
    view.end_evaluation()
    view.close()


LOGS = [{"lm_loss": 2.5, "jepa_loss": 0.25, "cosine_similarity": 0.75, "tokens_per_second": 1234.0}]


def test_other_processes_show_nothing(terminal, capsys):
    shown = terminal()
    for lines in (False, True):
        run_steps(RunDisplay(lines), TrainerState(max_steps=4, is_world_process_zero=False), LOGS)
    assert shown.written == "" and capsys.readouterr().out == ""


def test_a_resumed_run_starts_where_it_was(terminal, capsys):
    shown = terminal()
    run_steps(RunDisplay(), TrainerState(max_steps=9, global_step=5, is_world_process_zero=True), LOGS)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.written)
    assert "5/9" in text and "6/9" in text and "0/9" not in text
    assert "lm 2.5000  jepa 0.2500  cos 0.750  tok/s 1234" in text
    assert capsys.readouterr().out == "step 6/9  lm 2.5000  jepa 0.2500  cos 0.750  tok/s 1234\n"  # no terminal there


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
    assert re.search(r"\r\x1b\[2K(\x1b\[[0-9;]*m)*beware", shown.written)
    assert "0/3" in shown.written.partition("beware")[2]


@pytest.mark.parametrize(("variable", "value"), [("TERM", "dumb"), ("TTY_COMPATIBLE", "0"), ("TERM", "xterm")])
def test_where_there_is_a_bar(terminal, monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    terminal()
    assert RunDisplay().has_bar == (value == "xterm") and not RunDisplay(disable_tqdm=True).has_bar


def test_a_log_entry_in_one_line():
    assert short({"lm_loss": 1.23456, "eval_gsm8k": 0.5, "epoch": 1.0}, ["gsm8k"]) == "lm 1.2346  gsm8k 0.500"
    assert clock(3725.4) == "1:02:05"
