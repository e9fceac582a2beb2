"""A resumed run has the settings, data and content of its checkpoint, or is refused in one line; it ends with all that an
uninterrupted one ends with."""

import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from stepjepa.errors import ConfigError
from stepjepa.modeling.card import CARD
from stepjepa.utils.files import write_manifest
from support.rows import step_rows, write
from support.runs import CONSTANT, copy_of, files_of, one_line, result_of, resume, train
from support.training import trainer_for

# A learning rate that is not 0 at the last step: what is repeated or left out there shows.
STREAM = ("--streaming", "--shuffle_buffer", 8, "--max_steps", 12, "--save_steps", 5)


def of_run(folder):
    """Weights and log, the data report, and the lines of the card, the order of whose metrics may differ."""
    report = json.loads(re.sub(r"[^\s\"]*/rows.jsonl", "rows.jsonl", (folder / "data_report.json").read_text()))
    return {**result_of(folder), "report": report, "card": sorted((folder / CARD).read_text().splitlines())}


def resumed(run, folder, flags, after):
    out = copy_of(run, folder, killed_after=after)
    assert resume(out, *CONSTANT, *flags) == 0
    return of_run(out)


@pytest.fixture
def whole(tmp_path):
    (tmp_path / "whole").mkdir()
    return tmp_path / "whole" / "out"


def test_the_report_of_a_resumed_stream_counts_the_complete_run(whole, tmp_path):
    # The first row cannot be used.
    write(whole.parent / "rows.jsonl", [{"messages": [{"role": "user", "content": 5}]}, *step_rows(20)])
    assert train(whole, *CONSTANT, *STREAM) == 0
    expected = of_run(whole)
    report = expected["report"]["train"]
    assert report["rows_read"] > 40 and report["rows_skipped"] == {"content_not_text": 3}
    assert len(report["first_skipped"]) == 1
    assert any(f"{report['rows_read']} rows read" in line for line in expected["card"])
    for after in (10, 5):
        assert resumed(whole, tmp_path / f"after-{after}", STREAM, after) == expected


def test_an_evaluation_at_the_start_is_not_repeated(whole, tmp_path):
    rows = whole.parent / "rows.jsonl"
    flags = ("--eval_on_start", "--eval_strategy", "steps", "--eval_steps", 4, "--eval_file", rows)
    assert train(whole, *CONSTANT, *flags) == 0
    expected = of_run(whole)
    assert [entry["step"] for entry in expected["log"] if "eval_loss" in entry] == [0, 4, 6]
    for after in (4, 6):
        assert resumed(whole, tmp_path / f"after-{after}", flags, after) == expected


@pytest.mark.parametrize("name", ["resume_record.json", "model.safetensors", "rng_state.pth"])
def test_a_checkpoint_that_fits_its_manifest_and_holds_something_else_is_one_line(ended, tmp_path, capsys, name):
    out = copy_of(ended, tmp_path, killed_after=4)
    shutil.rmtree(out / "checkpoint-2")
    file = out / "checkpoint-4" / name
    if name == "resume_record.json":
        file.write_text(json.dumps({**json.loads(file.read_text()), "cut": 5}))
    elif name == "model.safetensors":
        tensors = load_file(file)
        del tensors[max(tensors, key=lambda one: tensors[one].numel())]
        save_file(tensors, file, metadata={"format": "pt"})
    else:
        torch.save({"python": 1}, file)
    write_manifest(out / "checkpoint-4")
    before = files_of(out / "checkpoint-4")
    assert resume(out, *CONSTANT) == 2
    assert "checkpoint" in one_line(capsys.readouterr().err)
    assert files_of(out / "checkpoint-4") == before


# Other settings and data


@pytest.fixture
def killed(ended, tmp_path):
    return copy_of(ended, tmp_path, killed_after=4)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--learning_rate 0.5", "learning_rate=0.01, not 0.5"),
        ("--lr_scheduler_type cosine", "lr_scheduler_type=constant, not cosine"),
        ("--bf16", "bf16=False, not True"),
        ("--optim sgd", "optim=adamw_torch_fused, not sgd"),
        ("--lbd 0.1", "lbd=0.5, not 0.1"),
        ("--lora", "lora=False, not True"),
    ],
)
def test_other_settings_are_refused_by_name(killed, flags, words, capsys):
    before, new = files_of(killed), killed.parent / "new"
    named = ("--resume_from_checkpoint", killed / "checkpoint-4")
    for out, more in ((killed, named[:1] + ("true",)), (new, named)):
        assert train(out, *CONSTANT, *more, *flags.split()) == 2
        line = one_line(capsys.readouterr().err)
        assert words in line and "--output_dir" in line
    assert files_of(killed) == before and not new.exists()


def test_other_data_is_refused(killed, tmp_path, capsys):
    write(tmp_path / "rows.jsonl", step_rows(20, seed=5))
    assert train(tmp_path / "new", *CONSTANT, "--resume_from_checkpoint", killed / "checkpoint-4") == 2
    assert "the training data differs" in one_line(capsys.readouterr().err) and not (tmp_path / "new").exists()


def test_what_leaves_training_alone_may_change(killed, tmp_path):
    flags = "--max_steps 5 --logging_steps 1 --save_steps 1 --save_total_limit 1 --dataloader_num_workers 1 --debug 1"
    flags += f" --eval_file {tmp_path / 'rows.jsonl'} --eval_strategy steps --eval_steps 1"
    flags += f" --per_device_eval_batch_size 2 --resume_from_checkpoint {killed / 'checkpoint-4'}"
    assert train(tmp_path / "new", *CONSTANT, *flags.split()) == 0
    assert (tmp_path / "new" / "metrics.json").is_file()


def test_the_python_interface_is_checked(tmp_path, tokenizer):
    def trainer(folder=tmp_path, rows=None, **options):
        saves = {"save_strategy": "steps", "save_steps": 2}
        return trainer_for(folder, tokenizer, rows or step_rows(16), objective="step_jepa", **saves, **options)

    trainer().train()
    for options, words in (({"learning_rate": 0.5}, "learning_rate=0.01, not 0.5"), ({"optim": "sgd"}, "optim=")):
        with pytest.raises(ConfigError, match=words):
            trainer(**options).train(resume_from_checkpoint=True)
        with pytest.raises(ConfigError, match=words):
            other = trainer(tmp_path / "new", **options)
            other.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    with pytest.raises(ConfigError, match="the training data differs from that"):
        trainer(rows=step_rows(16, seed=5)).train(resume_from_checkpoint=True)
    assert trainer(logging_steps=2).train(resume_from_checkpoint=True).global_step == 2
