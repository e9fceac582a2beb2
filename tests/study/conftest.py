"""Studies whose processes are played: what a study does with its runs, without training any."""

import dataclasses
import json
import threading

import pytest
import yaml

from stepjepa.study import stages
from stepjepa.study.folder import StudyRunFolder, write_record
from stepjepa.study.reading import read_study
from stepjepa.study.run import run_study
from stepjepa.study.spec import StudyOptions
from stepjepa.study.stages import StageFailed
from stepjepa.study.tree import parse_tree
from stepjepa.training.run_folder import BROKEN
from support.runs import run_here

STUDY = """\
title: Played
data: {builtin: {train_rows: 6, select_rows: 2, test_rows: 2}}
base: {model_name: tiny, max_steps: 4}
arms:
  regular: {objective: regular}
  step_jepa: {objective: step_jepa, lbd: 0.5}
seeds: [1, 2, 3]
"""


class Player:
    """Stands in for the processes of a study.

    Attributes:
        calls: (run, "train" or the splits that were scored), in order.
        value: from a run's options, the seed among them, and a split to answer_nll; None for one that diverged.
        fails: from a run's name and a stage to whether it fails.
        diverges: from a run's name to whether it diverges. die: the number of the call at which the study is interrupted.
        record, log: what stands in run.json and in the log of each training.
    """

    def __init__(self):
        self.calls = []
        self.value = lambda options, split: 1.0
        self.fails = lambda run, stage: False
        self.diverges = lambda run: False
        self.die = None
        self.record = {}
        self.log = [{"step": 4}]
        self._lock = threading.Lock()

    def __call__(self, log, argv, environment):
        folder, stage = StudyRunFolder(log.parent), log.stem
        name = json.loads(folder.plan.read_text())["run"]
        options = yaml.safe_load(folder.train_config.read_text())
        with self._lock:
            self.calls.append((name, "train" if argv[0] == "train" else tuple(argv[2:])))
            if len(self.calls) == self.die:
                raise KeyboardInterrupt
        log.write_text(f"a line\nthe last line of {stage}\n")
        if self.fails(name, stage):
            raise StageFailed(f"exit status 1; the last line of {stage}")
        if argv[0] == "train":
            folder.model.mkdir(exist_ok=True)
            if self.diverges(name):
                (folder.model / BROKEN).write_text(json.dumps({"step": 2, "what": "the loss is not finite"}))
                raise StageFailed("exit status 1")
            (folder.model / "model.safetensors").write_bytes(b"weights")
            metrics = {"total_flos": 100.0 + options["seed"], "train_runtime": 2.0}
            written = {"steps": 4, "metrics": metrics, "log_history": self.log}
            (folder.model / "metrics.json").write_text(json.dumps(written))
            (folder.model / "run.json").write_text(json.dumps(self.record))
            return
        for split in argv[2:]:
            assert folder.has_weights, "the weights were deleted before they were scored"
            value = self.value(options, split)
            write_record(folder.record(split), {"metrics": {"answer_nll": value, "gsm8k": 0.5}})


@pytest.fixture
def player(monkeypatch):
    player = Player()
    monkeypatch.setattr(stages, "run_process", player)
    return player


@pytest.fixture
def study_file(tmp_path):
    (tmp_path / "study.yaml").write_text(STUDY)
    return str(tmp_path / "study.yaml")


@pytest.fixture
def carry_out(tmp_path, player):
    """Carry a study out, as the command does; the lines that it said are in `.said` of the outcome."""

    def carry_out(*overrides, overwrite=False, kept=None, folder="out"):
        read = read_study(parse_tree(STUDY, "study.yaml"), "study", assignments=overrides)
        study = dataclasses.replace(read, output_dir=tmp_path / folder)
        said: list[str] = []
        asked = StudyOptions(overwrite_output_dir=overwrite, records=kept)
        outcome = run_study(study, asked, said.append)
        outcome.said = said
        return outcome

    return carry_out


@pytest.fixture
def in_this_process(monkeypatch):
    """Runs that are trained and scored for real, but here, where torch is loaded already."""
    monkeypatch.setattr(stages, "run_process", run_here)
