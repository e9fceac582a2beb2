"""Commands on a local Ray of two cores, from which a process is taken in the middle of the work."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from functools import partial
from pathlib import Path

import psutil
import pytest

from stepjepa.cli.main import main
from stepjepa.data.prepare import _RawRows
from stepjepa.errors import ConfigError, DataError, RunError
from stepjepa.generation.store import Replies
from stepjepa.utils.files import checksum
from stepjepa.utils.parallel import Copies, in_workers, mapped
from support.rows import lines, write
from support.sharding import launch

pytestmark = pytest.mark.long
CHATS = [
    [{"role": "user", "content": f"Add {n}."}, {"role": "assistant", "content": f"Take {n}.\n\nIt is {n + 1}."}]
    for n in range(600)
]


@pytest.fixture(scope="module", autouse=True)
def cluster():
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=10**8, log_to_driver=False)
    yield
    ray.shutdown()


def kill(name):
    """Kill one of this Ray's processes that carry out `name`."""
    children = psutil.Process().children(recursive=True)
    os.kill(next(one.pid for one in children if name in " ".join(one.cmdline())), signal.SIGKILL)


def killing(values, at, name="ray::_Copy"):
    for number, value in enumerate(values):
        if number == at:
            kill(name)
        yield value


def test_order_and_errors():
    assert list(mapped(str, killing(range(30), 9), 2, "num_proc", "ray")) == list(map(str, range(30)))
    with pytest.raises(ConfigError, match="--num_proc 3: the Ray cluster has 2 CPUs"):
        next(mapped(str, range(3), 3, "num_proc", "ray"))
    with pytest.raises(ValueError, match="invalid literal for int.. with base 10: 'a'$"):
        list(mapped(int, ["1", "a"], 1, "num_proc", "ray"))
    with pytest.raises(RunError, match="^Ray: ") as caught:
        Copies(os._exit, 1, "num_proc")(3)  # whoever takes it up dies
    assert "\n" not in str(caught.value) and not isinstance(caught.value, DataError)


@pytest.mark.parametrize("processes", [1, 2])
def test_prepared_rows_are_the_same_bytes(processes, tmp_path, monkeypatch):
    rows = [{"question": f"Add {n} to 1.", "answer": f"Take {n}.\nAdd 1.\n#### {n + 1}"} for n in range(6000)]
    source = write(tmp_path / "raw.jsonl", [*rows, {"question": ""}])
    words = ["prepare", source, "--valid_ratio", "0.2", "--output_file"]
    assert main([*words, str(tmp_path / "a.jsonl")]) == 0
    blocks = _RawRows.blocks
    monkeypatch.setattr(_RawRows, "blocks", lambda self: killing(blocks(self), 8))
    assert main([*words, str(tmp_path / "b.jsonl"), "--engine", "ray", "--num_proc", str(processes)]) == 0
    for kind in ("jsonl", "valid.jsonl"):
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()


@pytest.mark.parametrize("how", ["", "--streaming --shuffle_buffer 64"])
def test_tokenised_rows_train_the_same_model(how, tmp_path):
    data = write(tmp_path / "chats.jsonl", [{"messages": chat} for chat in CHATS])
    words = f"train --train_file {data} --model_name tiny --step_jepa --max_steps 2 --disable_tqdm true {how}".split()
    assert main([*words, "--output_dir", str(tmp_path / "a")]) == 0
    ray = ["--engine", "ray", "--dataset_num_proc", "2"]
    assert main([*words, "--output_dir", str(tmp_path / "b"), *ray]) == 0
    for weights in ("model.safetensors", "predictors.safetensors"):
        assert checksum(tmp_path / "a" / weights) == checksum(tmp_path / "b" / weights)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    data = write(folder / "chats.jsonl", [{"messages": chat} for chat in CHATS[:50]])
    words = f"train --train_file {data} --model_name tiny --max_steps 12 --learning_rate 3e-3 --disable_tqdm true"
    assert main([*words.split(), "--output_dir", str(folder / "run")]) == 0
    asked = [{"question": f"Add {n}{' and so on' * (n % 5)}.", "answer": f"{n + 1}"} for n in range(37)]
    write(folder / "asked.jsonl", asked)
    return folder


def test_replicas_answer_as_one_model_and_resume(model, tmp_path, monkeypatch):
    words = ["evaluate", str(model / "run"), str(model / "asked.jsonl"), "--metric", "exact", "--output_dir"]
    how = ["--max_new_tokens", "12", "--batch_size", "4", "--temperature", "0.8"]
    assert main([*words, str(tmp_path / "a"), *how]) == 0
    add, stored = Replies.add, []

    def interrupted(self, line):
        add(self, line)
        stored.append(line)
        if len(stored) == 2:
            kill("ray::_Copy")
        if len(stored) == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(Replies, "add", interrupted)
    on_ray = [*words, str(tmp_path / "b"), *how, "--ray_replicas"]
    assert main([*on_ray, "2"]) == 130
    assert len(lines(tmp_path / "b" / "predictions.partial")) == 6
    assert main([*on_ray, "1"]) == 0 and len(stored) == 10  # 37 questions, 4 at a time
    found = lines(tmp_path / "b" / "predictions.jsonl")
    assert found == lines(tmp_path / "a" / "predictions.jsonl")
    assert len({row["generated_response"] for row in found}) > 9


def test_replicas_generate_what_one_model_does(model, tmp_path):
    words = f"generate {model}/asked.jsonl --model_name {model}/run --max_new_tokens 9 --attempts 2 --keep_attempts"
    assert main([*words.split(), "--output_file", str(tmp_path / "a.jsonl")]) == 0
    assert main([*words.split(), "--output_file", str(tmp_path / "b.jsonl"), "--ray_replicas", "2"]) == 0
    for kind in ("attempts", "unsolved"):
        assert lines(tmp_path / f"a.{kind}.jsonl") == lines(tmp_path / f"b.{kind}.jsonl")


def test_a_likelihood_is_refused(model, capsys):
    words = [
        "evaluate",
        str(model / "run"),
        str(model / "asked.jsonl"),
        "--ray_replicas",
        "2",
        "--metric",
        "answer_nll",
    ]
    assert main(words) == 2
    assert "answer_nll is computed by this process: leave --ray_replicas out" in capsys.readouterr().err


STUDY = """\
data: {builtin: {train_rows: 64, select_rows: 4, test_rows: 4}}
base: {model_name: tiny, max_steps: 60, save_steps: 5, per_device_train_batch_size: 4, learning_rate: 2.0e-3}
arms: {regular: {}}
seeds: [1]
metrics: [answer_nll]
ray: {cpus: 1, retries: 1}
"""


def once(there, act):
    """Do something once the file `there` exists, and set what is returned."""

    def wait():
        while not there.exists():
            time.sleep(0.05)
        act()
        acted.set()

    acted = threading.Event()
    threading.Thread(target=wait, daemon=True).start()
    return acted


KILL_TASK = partial(kill, "ray::carry_out_task")


def test_a_run_of_a_study_is_begun_again_where_its_process_is_lost(tmp_path):
    (tmp_path / "study.yaml").write_text(STUDY)
    words, run = ["study", str(tmp_path / "study.yaml"), "--output_dir"], Path("runs", "regular", "seed-1")
    assert main([*words, str(tmp_path / "a")]) == 0
    killer = once(tmp_path / "b" / run / "model" / "checkpoint-5" / "manifest.json", KILL_TASK)
    assert main([*words, str(tmp_path / "b"), "--executor", "ray"]) == 0
    assert killer.is_set()
    first, second = (lines(tmp_path / name / "results.jsonl")[0] for name in "ab")
    assert first["metrics"] == second["metrics"]
    assert json.loads((tmp_path / "b" / run / "trained.json").read_text())["resumed_at_step"] >= 5
    assert (tmp_path / "b" / run / "train.log").read_text().count("--- ") == 2


def test_wrong_parameters_are_told(tmp_path, capsys):
    (tmp_path / "study.yaml").write_text(STUDY)
    words = ["study", str(tmp_path / "study.yaml"), "--output_dir", str(tmp_path / "out"), "--executor", "ray"]
    assert main([*words, "--set", "ray.cpu=1"]) == 2
    assert "ray: Invalid option keyword cpu for remote functions" in capsys.readouterr().err


INTERRUPT = partial(os.kill, os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(
    ("act", "status", "words"), [(KILL_TASK, 1, "FAILED: Ray: "), (INTERRUPT, 130, "the same command resumes")]
)
def test_processes_end_with_a_task_that_is_lost_or_cancelled(act, status, words, tmp_path, capsys):
    (tmp_path / "study.yaml").write_text(STUDY)
    flags = ["--output_dir", str(tmp_path / "out"), "--executor", "ray", "--set", "ray.retries=0"]
    acting = once(tmp_path / "out" / "runs" / "regular" / "seed-1" / "train.log", act)
    assert main(["study", str(tmp_path / "study.yaml"), *flags]) == status
    assert acting.is_set()
    assert words in "".join(capsys.readouterr())
    end = time.monotonic() + 20
    while any(str(tmp_path) in " ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])):
        assert time.monotonic() < end, "a process of the run is left"
        time.sleep(0.1)


def test_training_resumes_where_a_process_is_lost_and_ends_as_with_torchrun(tmp_path, capfd):
    data = write(tmp_path / "chats.jsonl", [{"messages": chat} for chat in CHATS])
    words = f"train --train_file {data} --model_name tiny --step_jepa --max_steps 8 --save_steps 2 --disable_tqdm true"
    assert launch([*words.split(), "--output_dir", tmp_path / "a"], "stepjepa").returncode == 0
    on_ray = [*words.split(), "--output_dir", str(tmp_path / "b"), "--ray_workers"]
    killer = once(tmp_path / "b" / "checkpoint-2" / "manifest.json", partial(kill, "ray::RayTrainWorker"))
    capfd.readouterr()
    assert main([*on_ray, "2", "--resume_from_checkpoint", "true"]) == 0
    assert killer.is_set()
    assert f"load   AutoModelForCausalLM.from_pretrained('{tmp_path / 'b'}')" in capfd.readouterr().out
    for weights in ("model.safetensors", "predictors.safetensors"):
        assert checksum(tmp_path / "a" / weights) == checksum(tmp_path / "b" / weights)


def test_mistakes_are_not_tried_again(tmp_path):
    def work():
        with open(tmp_path / "tried", "a") as file:
            file.write("x")
        raise ConfigError("no such thing")

    with pytest.raises(ConfigError, match="^no such thing$"):
        in_workers(work, 1, "ray_workers", resumes=True)
    assert (tmp_path / "tried").read_text() == "x"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--ray_workers 3", "--ray_workers 3: the Ray cluster has 2 CPUs"),
        ("--ray_workers 1 --engine ray", "--engine ray needs cores besides those of --ray_workers; leave it out"),
        ("--ray_workers 1", "no such file"),
    ],
)
def test_mistakes_are_told_as_without_ray(flags, words, tmp_path, capsys):
    train = f"train --train_file {tmp_path}/none.jsonl --model_name tiny --output_dir {tmp_path}/out {flags}"
    assert main(train.split()) == 2
    assert words in capsys.readouterr().err.splitlines()[-1]
