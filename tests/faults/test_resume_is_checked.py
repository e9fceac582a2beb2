"""A resumed run has the settings and data of its checkpoint, however it is started; what leaves training alone may vary."""

from __future__ import annotations

import pytest

from stepjepa.cli.main import main
from stepjepa.errors import ConfigError
from stepjepa.modeling.load import load_model, load_tokenizer
from stepjepa.training.config import JEPAConfig
from stepjepa.training.trainer import JEPATrainer
from support.rows import step_rows, write
from support.runs import copy_of

ROWS = step_rows(16)
RUN = "--model_name tiny --step_jepa --max_steps 4 --save_steps 2 --per_device_train_batch_size 4 --disable_tqdm"


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """The data and the folder of a run of four steps that was killed after its checkpoint at the second."""
    folder = tmp_path_factory.mktemp("resume")
    file = write(folder / "rows.jsonl", ROWS)
    assert main(["train", "--train_file", file, *RUN.split(), "--output_dir", str(folder / "run")]) == 0
    return file, copy_of(folder / "run", folder / "killed", killed_after=2)


def resume(started, *flags, output=None, checkpoint="true"):
    file, run = started
    words = [*RUN.split(), "--output_dir", str(output or run), "--resume_from_checkpoint", str(checkpoint), *flags]
    return main(["train", "--train_file", file, *words])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--learning_rate 0.5", "learning_rate=0.001, not 0.5"),
        ("--lr_scheduler_type cosine", "lr_scheduler_type=linear, not cosine"),
        ("--bf16", "bf16=False, not True"),
        ("--optim sgd", "optim=adamw_torch_fused, not sgd"),
        ("--lbd 0.5", "lbd=0.1, not 0.5"),
        ("--lora", "lora=False, not True"),
    ],
)
def test_other_settings_are_refused_by_name(started, flags, words, tmp_path, capsys):
    before = sorted(started[1].rglob("*"))
    elsewhere = flags == "--lora"
    place = {"output": tmp_path / "new", "checkpoint": started[1] / "checkpoint-2"} if elsewhere else {}
    assert resume(started, *flags.split(), **place) == 2
    error = capsys.readouterr().err.strip()
    assert error.count("\n") == 0 and words in error and "--output_dir" in error
    assert sorted(started[1].rglob("*")) == before and not (tmp_path / "new").exists()


def test_other_data_is_refused(started, tmp_path, capsys):
    other = write(tmp_path / "rows.jsonl", step_rows(16, seed=5))
    place = {"output": tmp_path / "new", "checkpoint": started[1] / "checkpoint-2"}
    assert resume((other, started[1]), **place) == 2
    assert "the training data is not that" in capsys.readouterr().err and not (tmp_path / "new").exists()


def test_what_leaves_training_alone_may_change(started, tmp_path, capsys):
    flags = "--max_steps 3 --logging_steps 1 --save_steps 1 --save_total_limit 1 --dataloader_num_workers 1 --debug 1"
    flags += f" --eval_file {started[0]} --eval_strategy steps --eval_steps 1 --per_device_eval_batch_size 2"
    place = {"output": tmp_path / "new", "checkpoint": started[1] / "checkpoint-2"}
    assert resume(started, *flags.split(), **place) == 0, capsys.readouterr().err
    assert (tmp_path / "new" / "metrics.json").is_file()


def test_the_python_interface_is_checked(tmp_path):
    tokenizer = load_tokenizer("tiny", [message["content"] for row in ROWS for message in row["messages"]])
    given = {"output_dir": str(tmp_path / "run"), "objective": "step_jepa", "save_steps": 2, "disable_tqdm": True}

    def trainer(rows=ROWS, **options):
        config = JEPAConfig(max_steps=2, per_device_train_batch_size=4, **{**given, **options})
        return JEPATrainer(load_model("tiny", tokenizer), config, rows, None, tokenizer)

    trainer().train()
    for options, words in (({"learning_rate": 0.5}, "learning_rate=2e-05, not 0.5"), ({"optim": "sgd"}, "optim=")):
        with pytest.raises(ConfigError, match=words):
            trainer(**options).train(resume_from_checkpoint=True)
        with pytest.raises(ConfigError, match=words):
            other = trainer(output_dir=str(tmp_path / "new"), **options)
            other.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    with pytest.raises(ConfigError, match="the training data is not that"):
        trainer(rows=step_rows(16, seed=5)).train(resume_from_checkpoint=True)
    assert trainer(logging_steps=1).train(resume_from_checkpoint=True).global_step == 2
