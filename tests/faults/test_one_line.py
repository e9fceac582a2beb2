"""What is wrong with options, records and files is one line each, before any work is lost."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from inspect import getsource

import pytest
import torch
import transformers

from stepjepa.errors import ConfigError, DataError, RunError
from stepjepa.evaluation.run import earlier_result
from stepjepa.generation.output import reading_record
from stepjepa.modeling import load
from stepjepa.modeling.load import load_model
from stepjepa.study.records import StudyRunFolder
from stepjepa.training import config
from stepjepa.training.config import JEPAConfig
from support.rows import step_rows
from support.training import trainer_for

# A run that could not train, or not end


def test_a_batch_that_the_data_cannot_fill_is_refused(tmp_path, tokenizer):
    for length in ({"max_steps": 2}, {"max_steps": -1, "num_train_epochs": 1}):
        options = {"dataloader_drop_last": True, **length}
        with pytest.raises(ConfigError, match="drops all 20 examples, which do not fill a batch of 32"):
            trainer_for(tmp_path, tokenizer, batch=32, **options).train()
        assert trainer_for(tmp_path, tokenizer, batch=20, **options).requested_steps > 0


def test_a_metric_that_no_evaluation_gives_is_refused_at_the_start(tmp_path, tokenizer):
    def made(metric, objective, rows=None, **more):
        rows = rows or step_rows(4)
        options = {"eval_strategy": "steps", "eval_steps": 2, "eval_rows": rows, "metric_for_best_model": metric}
        return trainer_for(tmp_path, tokenizer, objective=objective, **options, **more)

    several = {"near": step_rows(4), "far": step_rows(4)}
    best = {"load_best_model_at_end": True, "save_strategy": "steps", "save_steps": 2}
    for words, arguments in (
        ("best_model is exact; an evaluation has loss, lm_loss, jepa", ("eval_exact", "step_jepa")),
        ("best_model is jepa_loss; an evaluation has loss, lm_loss, runtime", ("jepa_loss", "regular")),
        ("best_model is loss; an evaluation has near_loss, .*far_lm_loss", (None, "regular", several)),
    ):
        with pytest.raises(ConfigError, match=words):
            made(*arguments, **best)
    made("eval_far_lm_loss", "regular", several)
    with pytest.raises(ConfigError) as refused:
        made("none", "step_jepa")
    known = set(str(refused.value).partition("has ")[2].split(", "))
    assert {name.removeprefix("eval_") for name in made("runtime", "step_jepa").evaluate()} == known


# Options that hold several settings


@pytest.mark.parametrize(
    ("option", "key", "near"),
    [
        ("accelerator_config", "split_batch", "split_batches"),
        ("gradient_checkpointing_kwargs", "use_reentrent", "use_reentrant"),
        ("fsdp_config", "fsdp_verison", "fsdp_version"),
    ],
)
def test_a_key_that_does_not_exist_is_named(tmp_path, option, key, near):
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({key: True}))
    for given in ({key: True}, str(file)):
        with pytest.raises(ConfigError, match=f"{option} has no key '{key}'; did you mean '{near}'"):
            JEPAConfig(**{option: given})
    file.write_text("[")
    with pytest.raises(ConfigError, match=f"{option} .*: cannot be read as a JSON object"):
        JEPAConfig(**{option: str(file)})


def test_every_key_that_transformers_reads_is_known():
    JEPAConfig(accelerator_config={"split_batches": False}, gradient_checkpointing_kwargs={"use_reentrant": False})
    source = getsource(transformers.training_args) + getsource(transformers.trainer)
    read = set(re.findall(r"(?<!xla_)fsdp_config(?:\.get\(|\.setdefault\(|\[)[\"'](\w+)[\"']", source))
    assert len(read) > 10 and read <= set(config._FSDP)


# Files


def test_damaged_records_of_evaluations_and_studies_are_one_line(tmp_path):
    metric = {"kind": "accuracy", "value": 0.5, "low": 0.1, "high": 0.9, "correct": 1, "n": 2}
    good = {"metrics": {"exact": metric}, "generation": {}, "rows": {"skipped": {}}}
    assert "50.0 %" in str(earlier_result(good, []))
    for damage in ({"metrics": None}, {"metrics": [1]}, {"metrics": {"exact": 5}}, {"rows": "text"}, {"generation": 5}):
        refused = pytest.raises(ConfigError, match="metrics.json: the record is damaged.*--overwrite")
        with refused, reading_record(tmp_path / "metrics.json"):
            str(earlier_result({**good, **damage}, []))
    run = StudyRunFolder(tmp_path)
    for stage, record in (("train", {"at": 1, "steps": 2}), ("test", {"at": "now", "metrics": 1})):
        run.record(stage).write_text(json.dumps(record))
        with pytest.raises(DataError, match="the record is damaged; delete it"):
            run.done(stage)


# Too little memory, and Ctrl-C


def test_a_lack_of_memory_does_not_speak_of_folders(tmp_path, tokenizer, monkeypatch):
    def fails(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(load.AutoModelForCausalLM, "from_pretrained", fails)
    with pytest.raises(RunError, match="out of memory while the model was loaded") as refused:
        load_model(str(tmp_path), tokenizer)
    assert "save_pretrained" not in str(refused.value)


# Neither a signal nor a thread interrupts the workers.
STUBBORN = """
import re, sys
from stepjepa.utils.parallel import mapped

def stubborn(number):
    return re.match(r"(a+)+$", "a" * 60 + "b") if number else number

if __name__ == "__main__":
    try:
        for one in mapped(stubborn, range(9), 2, "num_proc"):
            print(one, flush=True)
    except KeyboardInterrupt:
        sys.exit("interrupted")
"""


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
def test_an_interruption_ends_workers_at_once(tmp_path):
    (tmp_path / "work.py").write_text(STUBBORN)
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    options["env"] = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, tmp_path / "work.py"], **options)
    assert process.stdout is not None and process.stdout.readline() == "0\n"
    os.killpg(process.pid, signal.SIGINT)
    begin = time.monotonic()
    _, error = process.communicate(timeout=60)
    assert time.monotonic() - begin < 5 and error.strip() == "interrupted"
