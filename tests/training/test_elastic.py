"""A run that began on some processes is resumed on another number of them: the same examples, draws, losses and weights."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler

from faults import kill
from stepjepa.cli.main import main
from stepjepa.errors import ConfigError
from stepjepa.training.run_folder import Cut, ResumeRecord
from stepjepa.training.sampling import EpochSampler, Mixture
from support.rows import step_rows, write
from support.runs import copy_of, files_of, one_line
from support.sharding import launch

BATCH = 12
CUTS = [(1, 12), (2, 6), (3, 4), (4, 3), (2, 2), (4, 1)]  # processes, micro-batches of each in a step


@pytest.mark.parametrize("grouped", [False, True])
def test_a_step_has_the_same_examples_however_it_is_cut(grouped):
    lengths = np.random.default_rng(0).integers(5, 500, 50) if grouped else None
    found = []
    for processes, accumulation in CUTS:
        size = BATCH // (processes * accumulation)
        sampler = EpochSampler(Mixture((50,), (50,)), size * processes, 7, True, lengths, BATCH, replay_ratio=0.5)
        batches = BatchSampler(sampler, size, drop_last=False)
        shares = [list(BatchSamplerShard(batches, processes, process)) for process in range(processes)]
        assert len({len(share) for share in shares}) == 1, "every process has as many"
        drawn = [draw for turn in zip(*shares, strict=True) for batch in turn for draw in batch]
        assert all(draw.row < 0 for draw in drawn[50:])
        found.append(drawn[:50])
    assert all(one == found[0] for one in found) and sorted(draw.row for draw in found[0]) == list(range(50))


def record(cut: Cut, **settings) -> ResumeRecord:
    return ResumeRecord(settings, {"train": "x"}, cut)


@pytest.mark.parametrize(
    ("before", "now", "accumulation"),
    [(Cut(4, 1, 2), Cut(4), 2), (Cut(4, 1, 2), Cut(1, 7, 2), 4), (Cut(3, 4), Cut(3, 4, 4), 1), (Cut(2, 6), Cut(4), 3)],
)
def test_the_batch_is_kept_by_accumulation(before, now, accumulation, tmp_path):
    assert record(now).check_same(record(before), tmp_path) == accumulation


@pytest.mark.parametrize(
    ("before", "now", "settings", "words"),
    [
        (Cut(4, 1, 3), Cut(5), {}, "not a multiple of 5; change --per_device_train_batch_size"),
        (Cut(4, 2), Cut(4, 3), {}, "8 examples per step (4 x 2 accumulated), not 12; resume with the same number"),
        (Cut(4, 1, 2), Cut(4), {"dataloader_drop_last": True}, "and with --dataloader_drop_last, their division"),
        (Cut(4, 1, 2), Cut(4), {"streaming": True}, "and a stream must be resumed on as many processes: start 2"),
        (Cut(4, 1, 2), Cut(4), {"loss_scale": "reference"}, "reference, their division into micro-batches must stay"),
    ],
)
def test_another_batch_is_refused(before, now, settings, words, tmp_path):
    with pytest.raises(ConfigError) as raised:
        record(now, **settings).check_same(record(before, **settings), tmp_path)
    assert words in str(raised.value) and str(raised.value).startswith("--resume_from_checkpoint: the run in ")


RUN = (
    f"{kill.COMMON} --gradient_accumulation_steps 1 --step_pairs random --jepa_ratio 0.7 --replay_ratio 0.5 "
    "--adam_epsilon 1e-3 --train_sampling_strategy group_by_length --save_total_limit 5"
)


def words_of(folder: Path, more: str = "") -> list[str]:
    return f"train --train_file {folder.parent / 'rows.jsonl'} --output_dir {folder} {RUN} {more}".split()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of two processes, and the same one of one process with twice the accumulation."""
    two, one = tmp_path_factory.mktemp("two") / "out", tmp_path_factory.mktemp("one") / "out"
    for folder in (two, one):
        write(folder.parent / "rows.jsonl", step_rows(20))
    done = launch(words_of(two), "stepjepa")
    assert done.returncode == 0, done.stderr[-3000:]
    assert main(words_of(one, "--gradient_accumulation_steps 2")) == 0
    return two, one


@pytest.mark.long
@pytest.mark.parametrize("killed_after", [2, 4, 5])
def test_two_processes_then_one(runs, tmp_path, killed_after, capsys):
    two, one = runs
    expected = kill.outcome_of(one)
    assert not kill.difference(kill.outcome_of(two), expected) and expected["log"][-2]["learning_rate"] > 0
    run = copy_of(two, tmp_path, killed_after)
    assert main(words_of(run, "--resume_from_checkpoint true")) == 0
    said = capsys.readouterr()
    assert "5 of 8 examples (4 x 2 accumulated)" in said.out
    assert "was written with 4 x 2 processes examples per step" in said.err
    found, expected = (kill.comparable(one, killed_after) for one in (kill.outcome_of(run), expected))
    assert kill.difference(found, expected) == ""


@pytest.mark.long
def test_a_complete_run_is_complete_on_any_number_of_processes(runs, tmp_path, capsys):
    run = copy_of(runs[0], tmp_path)
    for checkpoint in run.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    before = files_of(run)
    # One and a half epochs of three steps each.
    flags = "--resume_from_checkpoint true --max_steps -1 --num_train_epochs 1.5"
    assert main(words_of(run, flags)) == 0, capsys.readouterr().err
    assert "complete, 5 of 5 steps" in capsys.readouterr().out
    assert main(words_of(run, "--resume_from_checkpoint true --per_device_train_batch_size 3")) == 2
    said = one_line(capsys.readouterr().err)
    assert "takes 8 examples per step (4 x 2 processes), which is not a multiple of 3" in said
    assert files_of(run) == before


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_runs_killed_at_random_end_equal_on_other_numbers_of_processes(tmp_path):
    assert kill.kill_elastic(tmp_path, 30) == (30, [])
