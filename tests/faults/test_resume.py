"""A resumed run has its checkpoint's settings, data and content and an uninterrupted one's end, or is refused."""

import json
import re
import shutil

import pytest
from safetensors.torch import load_file, save_file

from stepjepa.utils.files import write_manifest
from support.rows import step_rows, write
from support.runs import CONSTANT, copy_of, files_of, one_line, result_of, resume, train

STREAM = ("--streaming", "--shuffle_buffer", 8, "--max_steps", 12, "--save_steps", 5)


def of_run(folder):
    """Weights and log, and the data report."""
    report = json.loads(re.sub(r"[^\s\"]*/rows.jsonl", "rows.jsonl", (folder / "data_report.json").read_text()))
    return {**result_of(folder), "report": report}


def test_the_report_of_a_resumed_stream_counts_the_complete_run(tmp_path):
    whole = tmp_path / "whole" / "out"
    whole.parent.mkdir()
    # The first row cannot be used.
    write(whole.parent / "rows.jsonl", [{"messages": [{"role": "user", "content": 5}]}, *step_rows(20)])
    assert train(whole, *CONSTANT, *STREAM) == 0
    expected = of_run(whole)
    report = expected["report"]["train"]
    assert report["rows_read"] > 40 and report["rows_skipped"] == {"content_not_text": 3}
    assert len(report["first_skipped"]) == 1
    for after in (10, 5):
        out = copy_of(whole, tmp_path / f"after-{after}", killed_after=after)
        assert resume(out, *CONSTANT, *STREAM) == 0
        assert of_run(out) == expected
        assert not {"train_loss", "train_runtime"} & set(json.loads((out / "metrics.json").read_text())["metrics"])


@pytest.mark.parametrize("name", ["resume_record.json", "model.safetensors"])
def test_a_checkpoint_that_fits_its_manifest_and_holds_something_else_is_one_line(ended, tmp_path, capsys, name):
    out = copy_of(ended, tmp_path, killed_after=4)
    shutil.rmtree(out / "checkpoint-2")
    file = out / "checkpoint-4" / name
    if name == "resume_record.json":
        file.write_text(json.dumps({**json.loads(file.read_text()), "cut": 5}))
    else:
        tensors = load_file(file)
        del tensors[max(tensors, key=lambda one: tensors[one].numel())]
        save_file(tensors, file, metadata={"format": "pt"})
    write_manifest(out / "checkpoint-4")
    before = files_of(out / "checkpoint-4")
    assert resume(out, *CONSTANT) == 2
    assert "checkpoint" in one_line(capsys.readouterr().err)
    assert files_of(out / "checkpoint-4") == before


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--learning_rate 0.5", "learning_rate=0.01, not 0.5"),
        ("--lbd 0.1", "lbd=0.5, not 0.1"),
        ("--lora", "lora=False, not True"),
        ("", "the training data differs"),
    ],
)
def test_other_settings_and_data_are_refused_by_name(killed, tmp_path, flags, words, capsys):
    if not flags:
        write(tmp_path / "rows.jsonl", step_rows(20, seed=5))
    before, new = files_of(killed), tmp_path / "new"
    for out, checkpoint in ((killed, "true"), (new, killed / "checkpoint-4")):
        assert train(out, *CONSTANT, "--resume_from_checkpoint", checkpoint, *flags.split()) == 2
        line = one_line(capsys.readouterr().err)
        assert words in line and "--output_dir" in line
    assert files_of(killed) == before and not new.exists()


def test_what_leaves_training_alone_may_change(killed, tmp_path):
    flags = "--max_steps 5 --logging_steps 1 --save_steps 1 --save_total_limit 1 --dataloader_num_workers 1 --debug 1"
    flags += f" --eval_file {tmp_path / 'rows.jsonl'} --eval_strategy steps --eval_steps 1"
    flags += f" --per_device_eval_batch_size 2 --resume_from_checkpoint {killed / 'checkpoint-4'}"
    assert train(tmp_path / "new", *CONSTANT, *flags.split()) == 0
    assert (tmp_path / "new" / "metrics.json").is_file()
