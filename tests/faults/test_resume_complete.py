"""A resumed run ends with all that an uninterrupted one ends with, and a checkpoint whose content is another is refused."""

from __future__ import annotations

import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from stepjepa.modeling.card import CARD
from stepjepa.utils.files import write_manifest
from support.rows import step_rows, write
from support.runs import CONSTANT, copy_of, files_of, one_line, result_of, resume, train

# A learning rate that is not 0 at the last step: what is repeated or left out there shows.
STREAM = ("--streaming", "--shuffle_buffer", 8, "--max_steps", 12, "--save_steps", 5)


def of_run(folder):
    """Weights and log, the data report, and the lines of the card."""
    report = json.loads(re.sub(r"[^\s\"]*/rows.jsonl", "rows.jsonl", (folder / "data_report.json").read_text()))
    return {
        **result_of(folder),
        "report": report,
        "card": sorted((folder / CARD).read_text().splitlines()),  # the order of the metrics may differ
    }


def resumed(run, folder, flags, after):
    out = copy_of(run, folder, killed_after=after)
    assert resume(out, *CONSTANT, *flags) == 0
    return of_run(out)


def test_the_report_of_a_resumed_stream_counts_the_complete_run(tmp_path):
    run = tmp_path / "whole" / "out"
    run.parent.mkdir()
    rows = [{"messages": [{"role": "user", "content": 5}]}, *step_rows(20)]  # the first cannot be used
    write(run.parent / "rows.jsonl", rows)
    assert train(run, *CONSTANT, *STREAM) == 0
    expected = of_run(run)
    report = expected["report"]["train"]
    assert report["rows_read"] > 40 and report["rows_skipped"] == {"content_not_text": 3}
    assert len(report["first_skipped"]) == 1 and any(
        f"{report['rows_read']} rows read" in line for line in expected["card"]
    )
    for number, after in enumerate((10, 5)):
        assert resumed(run, tmp_path / f"resumed-{number}", STREAM, after) == expected


def test_an_evaluation_at_the_start_is_not_repeated(tmp_path):
    run = tmp_path / "whole" / "out"
    run.parent.mkdir()
    flags = ("--eval_on_start", "--eval_strategy", "steps", "--eval_steps", 4, "--eval_file", run.parent / "rows.jsonl")
    assert train(run, *CONSTANT, *flags) == 0
    expected = of_run(run)
    assert [entry["step"] for entry in expected["log"] if "eval_loss" in entry] == [0, 4, 6]
    assert resumed(run, tmp_path / "middle", flags, 4) == expected
    assert resumed(run, tmp_path / "end", flags, 6) == expected


# Files that fit the manifest and hold something else


def other_json(change):
    def write_other(path):
        record = json.loads(path.read_text())
        change(record)
        path.write_text(json.dumps(record))

    return write_other


def other_tensors(change):
    def write_other(path):
        tensors = load_file(path)
        name = max(tensors, key=lambda one: tensors[one].numel())
        change(tensors, name)
        save_file(tensors, path, metadata={"format": "pt"})

    return write_other


CONTENTS = {
    "record": ("resume_record.json", other_json(lambda record: record.update(cut=5))),
    "step is text": ("trainer_state.json", other_json(lambda record: record.update(global_step="four"))),
    "tensor lost": ("model.safetensors", other_tensors(lambda tensors, name: tensors.pop(name))),
    "tensor cut": ("model.safetensors", other_tensors(lambda tensors, name: tensors.update({name: tensors[name][:1]}))),
    "predictors": ("predictors.safetensors", other_tensors(lambda tensors, name: tensors.pop(name))),
    "scheduler": ("scheduler.pt", lambda path: path.write_bytes(b"words")),
    "generators": ("rng_state.pth", lambda path: torch.save({"python": 1}, path)),
}


@pytest.mark.parametrize(
    "kind",
    [
        name if name in ("record", "tensor lost", "generators") else pytest.param(name, marks=pytest.mark.long)
        for name in CONTENTS
    ],
)
def test_a_checkpoint_with_other_content_is_one_line(ended, tmp_path, capsys, kind):
    out = copy_of(ended, tmp_path, killed_after=4)
    shutil.rmtree(out / "checkpoint-2")
    name, change = CONTENTS[kind]
    change(out / "checkpoint-4" / name)
    write_manifest(out / "checkpoint-4")
    before = files_of(out / "checkpoint-4")
    assert resume(out, *CONSTANT) == 2
    assert "checkpoint" in one_line(capsys.readouterr().err)
    assert files_of(out / "checkpoint-4") == before


def test_a_stream_with_another_position_is_one_line(tmp_path, capsys):
    out = tmp_path / "out"
    flags = (*CONSTANT, "--streaming", "--shuffle_buffer", 8, "--max_steps", 4)
    assert train(out, *flags) == 0
    out = copy_of(out, tmp_path / "killed", killed_after=2)
    (out / "checkpoint-2" / "stream_0.json").write_text('{"shares": 1}')
    write_manifest(out / "checkpoint-2")
    assert resume(out, *flags) == 2
    assert "cannot be resumed from (KeyError" in one_line(capsys.readouterr().err)
