"""What a run shows: bars on a terminal, plain lines in a pipe, only its result when it is quiet; figures counted by hand."""

from __future__ import annotations

import io
import re
import sys

import pytest

from stepjepa.cli.main import main
from stepjepa.training.metrics import log_line
from stepjepa.training.options import RunOptions
from stepjepa.training.run import start_summary
from stepjepa.utils.terminal import only_results
from stepjepa.utils.text import clock
from support.rows import step_rows, write
from support.training import trainer_for

PLAIN = r"step (\d)/3  lm \d\.\d{4}  jepa \d\.\d{4}  cos -?\d\.\d{3}  tok/s \d+"
PUBLISHED = r"step (\d)/3  LM loss: (.+), JEPA loss: (.+), Total: (.+)"


@pytest.mark.parametrize(("flags", "form"), [("--logging_steps 1", PLAIN), ("--debug 1", PUBLISHED)])
def test_a_pipe_gets_plain_lines(flags, form, tmp_path, capfd):
    """With the lowest debug level, the losses and the total of every step, as the published code prints them."""
    rows = write(tmp_path / "rows.jsonl", step_rows(16))
    words = f"train --train_file {rows} --output_dir {tmp_path / 'out'} --model_name tiny --step_jepa --lbd 0.5"
    assert main(f"{words} --batch_size 4 --max_steps 3 --save_strategy no {flags}".split()) == 0
    said = capfd.readouterr()
    assert "\x1b" not in said.out + said.err and "\r" not in said.out + said.err
    lines = [re.fullmatch(form, line) for line in said.out.splitlines() if line.startswith("step ")]
    assert [line[1] for line in lines] == ["1", "2", "3"]
    if form == PUBLISHED:
        for line in lines:
            lm, jepa, total = map(float, line.groups()[1:])
            assert total == pytest.approx(lm + 0.5 * jepa, abs=2e-4)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("bars", "quiet"), [(True, False), (False, False), (True, True)])
def test_bars_are_on_a_terminal(bars, quiet, monkeypatch, capsys, tmp_path, tokenizer):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with only_results(quiet):
        trainer_for(tmp_path, tokenizer, disable_tqdm=not bars, eval_rows=step_rows(4), eval_strategy="epoch").train()
    assert (" 2/2 " in sys.stderr.getvalue()) == (bars and not quiet)
    assert ("step 2/2  lm " in capsys.readouterr().out) == (not quiet)


def test_figures_of_a_run(tmp_path, tokenizer):
    options = {"objective": "step_jepa", "gradient_accumulation_steps": 3, "num_train_epochs": 2, "max_steps": -1}
    made = trainer_for(tmp_path, tokenizer, step_rows(24), **options)
    said = start_summary(made, RunOptions(model_name="tiny"), None)
    assert re.search(r"^train  list: 24 rows read, 24 kept, 0 skipped, \d+ pairs$", said, re.MULTILINE)
    assert re.search(r"^model  tiny: ([\d,]+) parameters, \1 trained \(100 %\)$", said, re.MULTILINE)
    assert re.search(r"^steps  4 of 12 examples \(4 x 3 accumulated\), 2 epochs;", said, re.MULTILINE)
    assert log_line({"lm_loss": 1.23456, "eval_gsm8k": 0.5, "epoch": 1.0}, ["gsm8k"]) == "lm 1.2346  gsm8k 0.500"
    assert clock(3725.4) == "1:02:05"
