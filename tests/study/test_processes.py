"""The processes of a study: they end with it, a killed study goes on, and clusters' jobs do the same."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from stepjepa.cli.main import main
from stepjepa.errors import ConfigError
from stepjepa.study import stages
from stepjepa.study.folder import StudyRunFolder
from stepjepa.study.stages import Job, Processes, Submitit, carry_out, slurm_parameters
from support.rows import lines as lines_of

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")

STUDY = """\
data: {builtin: {train_rows: 64, select_rows: 4, test_rows: 4}}
base: {model_name: tiny, max_steps: 120, save_steps: 5, per_device_train_batch_size: 4, learning_rate: 2.0e-3}
arms: {regular: {objective: regular}, step_jepa: {objective: step_jepa, predictors: 1}}
seeds: [1, 2, 3]
metrics: [answer_nll]
"""


def wait_for(found, seconds=60.0):
    """What `found()` gives once it is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = found()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"waited {seconds} s in vain")


def test_a_failed_stage_shows_the_last_lines_of_its_log(tmp_path):
    run = StudyRunFolder(tmp_path)
    said = carry_out(str(tmp_path), ["test"], {})
    for word in ("exit status 1", "score.log", "FileNotFoundError", "plan.json"):
        assert word in said
    assert run.done("test") is None


def test_gpus_are_shared_out_among_the_runs_at_a_time(monkeypatch):
    given = []
    monkeypatch.setattr(stages, "carry_out", lambda folder, todo, environment: given.append(environment))
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    for visible, jobs in (("3,5", 3), ("", 2)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        executor = Processes(jobs)
        for _ in range(jobs):
            executor.carry_out(StudyRunFolder(Path("run")), ["train"])
    assert [one.get("CUDA_VISIBLE_DEVICES") for one in given] == ["3", "5", "3", None, None]
    assert [one["OMP_NUM_THREADS"] for one in given] == ["5", "5", "5", "8", "8"]


def test_parameters_of_the_jobs(tmp_path, monkeypatch):
    made = slurm_parameters({"partition": "gpu", "time": 600, "gpus": 1, "mem_gb": 32, "slurm_comment": "mine"})
    own = {"slurm_partition": "gpu", "slurm_time": 600, "slurm_comment": "mine"}
    assert made == {"timeout_min": 1440, "gpus_per_node": 1, "mem_gb": 32, **own}
    pytest.importorskip("submitit")
    job = Job()
    again = job.checkpoint("run", ["train"], "")  # what submitit asks for before the time limit and at a preemption
    assert (again.function, again.args) == (job, ("run", ["train"], ""))
    with pytest.raises(ConfigError, match="slurm: Unknown argument 'partion'.*partition"):
        Submitit("local", tmp_path, {"partion": "gpu"})
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="srun"):
        Submitit("slurm", tmp_path / "jobs", {})


def start(study, *flags):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "stepjepa", "study", str(study), *flags]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def scores_of(folder):
    return {
        (record["arm"], record["seed"]): (record["metrics"]["test"]["answer_nll"], record["flops"], record["steps"])
        for record in lines_of(folder / "results.jsonl")
    }


def children_of(folder):
    """Stages whose command line names the folder."""
    lines = [" ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])]
    return [line for line in lines if str(folder) in line and "study.stages" in line]


@pytest.fixture
def study(tmp_path):
    file = tmp_path / "study.yaml"
    file.write_text(STUDY)
    return file


FLAGS = ["--jobs", "2", "--seeds", "1"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What a study comes to that nobody disturbs."""
    for extra in ("scipy", "statsmodels", "matplotlib"):
        pytest.importorskip(extra)
    folder = tmp_path_factory.mktemp("whole")
    (folder / "study.yaml").write_text(STUDY)
    process = start(folder / "study.yaml", *FLAGS, "--output_dir", str(folder / "out"))
    said, _ = process.communicate(timeout=400)
    assert process.returncode == 0, said
    return scores_of(folder / "out")


@pytest.mark.long
@pytest.mark.parametrize("executor", ["processes", "local", "ray"])
def test_a_killed_study_comes_to_the_same_numbers(study, tmp_path, executor, whole):
    if executor != "processes":
        pytest.importorskip({"local": "submitit", "ray": "ray"}[executor])
    killed, flags = tmp_path / "killed", FLAGS
    first = start(study, *flags, "--output_dir", str(killed), "--executor", executor)
    checkpoint = killed / "runs" / "step_jepa" / "seed-1" / "model" / "checkpoint-5" / "manifest.json"
    wait_for(checkpoint.exists, 120)
    assert children_of(killed)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    wait_for(lambda: not children_of(killed), 20)  # Ray takes two seconds, in which a run of 30 steps would end
    again = start(study, *flags, "--output_dir", str(killed), "--executor", executor)
    said, _ = again.communicate(timeout=400)
    assert again.returncode == 0, said
    assert "step_jepa: not established: n=1 seed in common with regular" in said
    resumed = json.loads((killed / "runs" / "step_jepa" / "seed-1" / "trained.json").read_text())
    assert 5 <= resumed["resumed_at_step"] < resumed["steps"] == 120
    assert scores_of(killed) == whole


@pytest.mark.long
def test_ctrl_c_ends_the_processes_and_says_how_to_go_on(study, tmp_path):
    folder = tmp_path / "out"
    process = start(study, "--output_dir", str(folder))
    wait_for((folder / "runs" / "regular" / "seed-1" / "train.log").exists, 120)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "the same command resumes from there" in said
    assert not children_of(folder)


SBATCH = """#!/bin/bash
export SLURM_JOB_ID=$((100 + $(ls STARTED | wc -l))) SLURM_JOB_NUM_NODES=1 SLURM_JOB_NODELIST=here
export SLURM_NTASKS=1 SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0
touch STARTED/$SLURM_JOB_ID
setsid bash -c "$(sed s/%j/$SLURM_JOB_ID/g $1)" > /dev/null 2>&1 &
echo Submitted batch job $SLURM_JOB_ID
"""
SRUN = """#!/bin/bash
while [[ $1 == -* ]]; do
    [[ $1 == --output || $1 == --error ]] && shift
    shift
done
exec "$@"
"""
SACCT = """#!/bin/bash
echo "JobID|State|NodeList"
ls STARTED | sed "s/$/|RUNNING|here/"
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Commands with the names of SLURM's that start jobs here, and a folder with the jobs that were started."""
    pytest.importorskip("submitit")
    tools, jobs = tmp_path / "tools", tmp_path / "started"
    tools.mkdir()
    jobs.mkdir()
    for name, text in {"sbatch": SBATCH, "srun": SRUN, "sacct": SACCT}.items():
        (tools / name).write_text(text.replace("STARTED", str(jobs)))
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    return jobs


@pytest.mark.long
def test_jobs_of_slurm_outlive_the_study_and_are_found_again(study, slurm, tmp_path):
    folder = tmp_path / "out"
    flags = ["--executor", "slurm", "--output_dir", str(folder), "--seeds", "1"]
    study.write_text(STUDY + "slurm: {partition: gpu, time: 60, gpus: 1}\n")
    first = start(study, *flags)
    wait_for(lambda: len(list(folder.glob("runs/*/seed-1/job.json"))) == 2, 120)
    first.kill()
    first.wait()
    again = start(study, *flags)
    said, _ = again.communicate(timeout=400)
    assert again.returncode == 0, said
    assert len(list(slurm.iterdir())) == 2  # the jobs of the first start went on
    assert len(scores_of(folder)) == 2 and not list(folder.glob("runs/*/seed-1/job.json"))
    script = next((folder / "jobs").glob("*submission.sh")).read_text()
    assert all(f"#SBATCH --{line}" in script for line in ("partition=gpu", "gpus-per-node=1", "time=60"))


@pytest.mark.parametrize(
    ("command", "text", "said"),
    [
        ("sacct", "echo Slurm accounting storage is disabled >&2\nexit 1\n", "sacct fails here"),
        ("sbatch", "echo error: invalid partition >&2\nexit 1\n", "the job could not be submitted: error: invalid"),
    ],
)
def test_a_slurm_that_cannot_be_used(study, slurm, tmp_path, capsys, command, text, said):
    (tmp_path / "tools" / command).write_text(f"#!/bin/sh\n{text}")
    assert main(["study", str(study), "--executor", "slurm", "--output_dir", str(tmp_path / "out")]) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]  # submitit passes sbatch's own words on
    assert line.startswith("stepjepa study: error:") and said in line
