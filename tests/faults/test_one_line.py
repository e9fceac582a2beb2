"""What is wrong with options, records and files is one line each, before any work is lost."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from inspect import getsource
from pathlib import Path

import pytest
import torch
import transformers

from stepjepa.cli.main import main
from stepjepa.config.yaml_file import parse_tree
from stepjepa.data.template import ChatRenderer
from stepjepa.errors import ConfigError, RunError, explaining
from stepjepa.evaluation.score import earlier_result
from stepjepa.generation.output import reading_record
from stepjepa.modeling import load
from stepjepa.modeling.load import load_model
from stepjepa.objectives.base import own_options
from stepjepa.objectives.step_jepa import StepJEPA
from stepjepa.training import config
from stepjepa.training.config import JEPAConfig
from stepjepa.utils.files import parse_json
from support.rows import step_rows
from support.runs import copy_of
from support.training import trainer_for

# A run that could not train, or not end


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


# Objectives of the user's own whose options are broken


def test_every_key_that_transformers_reads_is_known():
    JEPAConfig(accelerator_config={"split_batches": False}, gradient_checkpointing_kwargs={"use_reentrant": False})
    source = getsource(transformers.training_args) + getsource(transformers.trainer)
    read = set(re.findall(r"(?<!xla_)fsdp_config(?:\.get\(|\.setdefault\(|\[)[\"'](\w+)[\"']", source))
    assert len(read) > 10 and read <= set(config._FSDP)


def options_class(kind=int, **members):
    """The dataclass of an objective's options with one field, `weight`."""
    return dataclass(type("Options", (), {"__annotations__": {"weight": kind}, **members}))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (object, "Own.Options is not a dataclass"),
        (options_class(weight=3)(), "Own.Options is not a dataclass"),
        (options_class(weight="three"), "weight is 'three'; it must be a whole number"),
    ],
)
def test_broken_options_of_an_own_objective_are_named(options, words):
    own = type("Own", (StepJEPA,), {"Options": options, "__module__": __name__})
    with pytest.raises(ConfigError, match=words):
        JEPAConfig(objective=own())
    if options.__class__ is not type or "check" not in vars(options):
        with pytest.raises(ConfigError, match=words):
            own_options(own())  # type: ignore[arg-type]


# Files


def test_yaml_has_aliases_and_no_endless_lists():
    assert parse_tree("a: &a [1, 2]\nb: *a", "run.yaml").value == {"a": [1, 2], "b": [1, 2]}
    with pytest.raises(ConfigError, match="run.yaml: not valid YAML: nested too deeply"):
        parse_tree("a: " + "[" * 3000 + "]" * 3000, "run.yaml")


def test_a_deep_record_of_a_run_costs_no_traceback(ended, tmp_path, capsys):
    for begin, end in (("[", "]"), ('{"a": ', "}")):
        with pytest.raises(ValueError, match="nested too deeply"):
            parse_json(begin * 100_000 + "1" + end * 100_000)
    out = copy_of(ended, tmp_path)
    record = json.loads((out / "run.json").read_text())
    text = json.dumps({**record, "settings": {**record["settings"], "objective": "DEEP"}})
    (out / "run.json").write_text(text.replace('"DEEP"', "[" * 100_000 + "]" * 100_000))
    assert main(["report", str(out), "--output_file", str(tmp_path / "page.html")]) == 0
    assert main(["export", "--checkpoint", str(out / "checkpoint-4"), "--output_dir", str(tmp_path / "model")]) == 0
    assert "Traceback" not in capsys.readouterr().err and (tmp_path / "model" / "README.md").exists()


def test_damaged_records_of_evaluations_are_one_line(tmp_path):
    metric = {"kind": "accuracy", "value": 0.5, "low": 0.1, "high": 0.9, "correct": 1, "n": 2}
    good = {"metrics": {"exact": metric}, "generation": {}, "rows": {"skipped": {}}}
    assert "50.0 %" in str(earlier_result(good, []))
    for damage in ({"metrics": None}, {"metrics": [1]}, {"metrics": {"exact": 5}}, {"rows": "text"}, {"generation": 5}):
        refused = pytest.raises(ConfigError, match="metrics.json: the record is damaged.*--overwrite")
        with refused, reading_record(tmp_path / "metrics.json"):
            str(earlier_result({**good, **damage}, []))


# A chat template's memory

GREEDY = {
    "repeated": "{{ 'x' * 50000000000 }}",
    "padded": "{{ '%099999999999d' % 3 }}",
    "output": "{% set x = 'x' * 1000000 %}{% for i in range(90000) %}{{ x }}{% endfor %}",
    "doubled": "{% set n = namespace(x='x' * 99) %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "list": "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
}


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs the limits of Linux")
@pytest.mark.parametrize(
    "name", [one if one in ("repeated", "padded") else pytest.param(one, marks=pytest.mark.long) for one in GREEDY]
)
def test_a_template_that_takes_too_much_memory_is_refused(tokenizer, name):
    import copy
    import resource

    greedy, before = copy.deepcopy(tokenizer), resource.getrlimit(resource.RLIMIT_AS)
    greedy.chat_template = GREEDY[name]
    with pytest.raises(ConfigError, match="the chat template takes more than 1,024 MiB for 1 messages; fix it"):
        ChatRenderer(greedy).apply([{"role": "user", "content": "a"}])
    assert resource.getrlimit(resource.RLIMIT_AS) == before


# Too little memory, and Ctrl-C


def test_a_lack_of_memory_does_not_speak_of_folders(tmp_path, tokenizer, monkeypatch):
    def fails(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    transformers.LlamaConfig().save_pretrained(tmp_path)
    monkeypatch.setattr(load.AutoModelForCausalLM, "from_pretrained", fails)
    with pytest.raises(RunError, match="out of memory while the model was loaded") as refused:
        load_model(str(tmp_path), tokenizer)
    assert "save_pretrained" not in str(refused.value)
    words = r"^out of memory \(Cannot allocate memory\); lower --batch_size, then start again$"
    with pytest.raises(RunError, match=words), explaining("--batch_size", "start again"):
        raise OSError(errno.ENOMEM, "Cannot allocate memory", "/some/folder/model.safetensors")


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
