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
from stepjepa.utils.files import checksum
from support.rows import lines, step_rows, write
from support.sharding import launch

pytestmark = pytest.mark.long


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
    data = write(tmp_path / "chats.jsonl", step_rows(600))
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


def test_mistakes_are_told_as_without_ray(tmp_path, capsys):
    train = f"train --train_file {tmp_path}/none.jsonl --model_name tiny --output_dir {tmp_path}/out --ray_workers"
    for workers, words in (("3", "--ray_workers 3: the Ray cluster has 2 CPUs"), ("1", "no such file")):
        assert main([*train.split(), workers]) == 2
        assert words in capsys.readouterr().err.splitlines()[-1]
