"""Kill runs at file operations, and compare what the next start makes of them with a run that nobody disturbed.

``python tests/faults/kill.py [--points N]``: N points spread over all of them; without N, every one. A
process that has imported everything forks a child for each run. The child counts its writes (when a file is opened and when
it is closed), renames, removals and new folders inside the run's folder, and ends at the n-th: a file that is being written
is cut in half. The same command with ``--resume_from_checkpoint true`` must end with the same weights, evaluations and log,
bit for bit, with the same newest checkpoint, and without a step too many. The first log entry after a resume covers fewer
steps, and so do the losses of the whole run and those since the last entry: they are not compared. Exit status 0 where every
point does.

``--elastic N`` does it N times at random points of runs of one to four processes, and resumes on another number of them:
the same examples, losses and weights to `CLOSE`, or for a stream a refusal where it has a checkpoint.
"""

import argparse
import builtins
import gc
import io
import json
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

KILLED = 99
STEPS = 5
COMMON = (
    f"--model_name tiny --step_jepa --max_steps {STEPS} --save_steps 2 --save_total_limit 1 --logging_steps 3 --lbd 0.5 "
    "--lr_scheduler_type constant --learning_rate 0.01 --per_device_train_batch_size 4 --disable_tqdm true --seed 3"
)
RUNS = {
    "full": "--eval_file eval.jsonl --eval_strategy epoch --gradient_accumulation_steps 2 --predictor_head linear",
    "lora": "--lora --lora_rank 4 --logging_steps 2",
    "ema": "--target_encoder ema --ema_momentum 0.5 --save_steps 1 --save_total_limit 2",
    "streaming": "--streaming --shuffle_buffer 8 --step_pairs random",
}
# Adam's usual epsilon would turn the rounding error of a gradient near zero into a step of full size.
ELASTIC = f"--resume_from_checkpoint true --adam_epsilon 1e-3 --jepa_ratio 0.7 --max_steps {STEPS}"
ELASTIC_RUNS = {
    "grouped": "--train_sampling_strategy group_by_length --step_pairs random",
    "ema": "--target_encoder ema --ema_momentum 0.5 --predictor_head linear --save_steps 1",
    "streaming": "--streaming --shuffle_buffer 24 --step_pairs random",
}
BATCH, CLOSE = 12, 1e-5
OPERATIONS = 220  # the fewest of such a run


class Faults:
    """Counts file operations inside a folder, and ends the process at operation `at`, from 1; 0 for none."""

    def __init__(self, folder: Path, at: int):
        self.folder, self.at = str(folder.resolve()), at
        self.seen: list[str] = []
        self.process = os.getpid()

    def inside(self, path: Any) -> bool:
        return isinstance(path, str | os.PathLike) and os.path.abspath(path).startswith(self.folder)

    def count(self, kind: str, path: Any, end: Callable[[], Any] | None = None) -> None:
        """Count an operation that is about to happen; `end` leaves what a kill in the midst of it leaves."""
        if os.getpid() != self.process or not self.inside(path):
            return
        self.seen.append(f"{kind} {os.path.relpath(os.path.abspath(path), self.folder)}")
        if len(self.seen) == self.at:
            if end is not None:
                end()
            os._exit(KILLED)

    def closed(self, path: Any) -> None:
        def cut() -> None:
            with suppress(FileNotFoundError):  # a lock is removed before it is closed
                os.truncate(path, os.path.getsize(path) // 2)

        self.count("close", path, cut)

    def install(self) -> None:
        """Put counting functions in place of the real ones, for the rest of this process."""
        import safetensors.torch
        import torch
        from transformers.tokenization_utils_tokenizers import TokenizersBackend

        for name in ("replace", "rename", "unlink", "remove", "rmdir", "mkdir"):
            self.wrap(os, name, lambda path, *_, name=name, **__: self.changes(name, path))
        shutil._use_fd_functions = False  # type: ignore[attr-defined]  # so that rmtree names complete paths
        self.wrap(os, "open", lambda path, flags, *_, **__: flags & os.O_CREAT and self.count("create", path))
        builtins.open = io.open = self.counting(io.open)  # type: ignore[assignment]
        # Functions that write a file outside of Python's own: a kill leaves it empty, or half of it.
        self.wrap_writer(torch, "save", lambda _, path, *__: path)
        self.wrap_writer(safetensors.torch, "serialize_file", lambda _, path, *__: path)
        self.wrap_writer(
            TokenizersBackend, "_save_pretrained", lambda _, save_directory, *__: f"{save_directory}/tokenizer.json"
        )

    def changes(self, name: str, path: Any) -> None:
        if os.path.lexists(path) != (name == "mkdir"):  # else nothing changes
            self.count(name, path)

    def wrap(self, owner: Any, name: str, before: Callable[..., Any]) -> None:
        real = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            before(*args, **kwargs)
            return real(*args, **kwargs)

        setattr(owner, name, wrapped)

    def wrap_writer(self, owner: Any, name: str, path_of: Callable[..., Any]) -> None:
        real = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            path = path_of(*args, **{key: value for key, value in kwargs.items() if key == "save_directory"})
            self.count("open", path, lambda: Path(path).write_bytes(b""))
            result = real(*args, **kwargs)
            self.closed(path)
            return result

        setattr(owner, name, wrapped)

    def counting(self, real: Any) -> Any:
        def counted(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            file = real(path, mode, *args, **kwargs)
            if set(mode) & set("wxa+") and self.inside(path):
                self.count("open", path)
                close = file.close

                def closing() -> None:
                    if not file.closed:
                        file.flush()
                        self.closed(path)
                    close()

                file.close = closing
            return file

        return counted


def train(folder: Path, flags: str, at: int = 0, operations: Path | None = None) -> int:
    """``stepjepa train`` in a forked child; its exit status, `KILLED` where it was killed at operation `at`."""
    return os.waitstatus_to_exitcode(os.waitpid(start(folder, flags, at, operations), 0)[1])


def train_on(processes: int, folder: Path, flags: str, at: int = 0) -> int:
    """The same in several forked children; when one of them fails or is killed, the others are killed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(processes)}
    places = [{**place, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]
    children = {start(folder, flags, 0 if rank else at, place=one) for rank, one in enumerate(places)}
    first = 0
    while children:
        child, status = os.wait()
        children.discard(child)
        first = first or os.waitstatus_to_exitcode(status)
        for other in children if first else ():
            os.kill(other, signal.SIGKILL)
    return first


def start(
    folder: Path, flags: str, at: int = 0, operations: Path | None = None, place: dict[str, str] | None = None
) -> int:
    """``stepjepa train`` in a forked child, one of several processes with `place` as `torchrun` gives it; its number."""
    child = os.fork()
    if child:
        return child
    status = 70
    try:
        if place is not None and place["WORLD_SIZE"] != "1":
            from accelerate.state import AcceleratorState

            AcceleratorState._reset_state(reset_partial_state=True)  # the parent's is that of one process
            os.environ |= place
        log = os.open(folder.parent / f"{folder.name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        os.chdir(folder.parent)
        from stepjepa.cli.main import main

        faults = Faults(folder, at)
        faults.install()
        words = f"train --train_file rows.jsonl --output_dir {folder} {COMMON} {flags}"
        status = main(words.split())
        if operations is not None:
            faults.at = -1
            operations.write_text(json.dumps(faults.seen))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def outcome_of(folder: Path) -> dict[str, Any]:
    """What must be equal: weights, metrics, log, the number of steps, and the newest complete checkpoint."""
    from stepjepa.training.run_folder import RunFolder
    from support.runs import result_of

    steps = json.loads((folder / "metrics.json").read_text())["steps"]
    newest = RunFolder(folder).checkpoint
    return {**result_of(folder), "steps": steps, "checkpoint": newest and newest.name}


def step_of(checkpoint: Path | None) -> int:
    """The step of a checkpoint, 0 of none."""
    return int(checkpoint.name.partition("-")[2]) if checkpoint else 0


def comparable(outcome: dict[str, Any], resumed_after: int) -> dict[str, Any]:
    """An outcome without the first log entry after a resume, and without losses over more than the steps since then."""
    covered = [entry["step"] for entry in outcome["log"] if "loss" in entry and entry["step"] > resumed_after]
    first = covered[0] if covered and resumed_after else None
    log = [entry for entry in outcome["log"] if not ("loss" in entry and entry["step"] == first)]
    metrics = {name: value for name, value in outcome["metrics"].items() if name.startswith("eval_")}
    return {**outcome, "log": log, "metrics": metrics}


def last_line(folder: Path) -> str:
    lines = (folder.parent / f"{folder.name}.log").read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def check_point(folder: Path, flags: str, at: int, expected: dict[str, Any]) -> str | None:
    """Kill a run at an operation and start it again; what differs from `expected`, None where nothing does."""
    from stepjepa.training.run_folder import RunFolder

    flags += " --resume_from_checkpoint true"
    resumed_after = 0
    for killed, wanted in ((at, KILLED), (0, 0)):
        status = train(folder, flags, killed)
        if status != wanted:
            return f"exit status {status}, not {wanted}: {last_line(folder)}"
        resumed_after = resumed_after or step_of(RunFolder(folder).checkpoint)
    found, expected = (comparable(one, resumed_after) for one in (outcome_of(folder), expected))
    wrong = [part for part, value in expected.items() if found[part] != value]
    shutil.rmtree(folder)
    return f"differs in {', '.join(wrong)}" if wrong else None


def difference(found: dict[str, Any], expected: dict[str, Any]) -> str:
    """In what two outcomes differ by more than rounding; empty where they do not."""
    import torch
    from safetensors.torch import load

    for part in ("steps", "checkpoint"):
        if found[part] != expected[part]:
            return f"{part}: {found[part]}, not {expected[part]}"
    for name, data in expected["weights"].items():
        after = load(found["weights"][name])
        for key, value in load(data).items():
            if not torch.allclose(after[key], value, atol=CLOSE, rtol=0):
                return f"{key}: {(after[key] - value).abs().max():.1e} off"
    for entry, wanted in [*zip(found["log"], expected["log"], strict=True), (found["metrics"], expected["metrics"])]:
        compared = ("num_pairs", "cosine_similarity", "learning_rate")
        for name in [name for name in wanted if "loss" in name or name in compared]:
            if abs(entry[name] - wanted[name]) > CLOSE:
                return f"{name} at step {wanted.get('step')}: {entry[name]}, not {wanted[name]}"
    return ""


def kill_elastic(folder: Path, number: int, seed: int = 0) -> tuple[int, list[str]]:
    """Kill `number` runs at random and resume them on other numbers of processes; how many, and what went wrong."""
    from stepjepa.training.run_folder import RunFolder

    warm_up(folder)
    rng = random.Random(seed)
    expected: dict[str, dict[str, Any]] = {}
    wrong: list[str] = []
    for index in range(number):
        name = list(ELASTIC_RUNS)[index % len(ELASTIC_RUNS)]
        before, after = rng.sample((1, 2, 3, 4), 2)
        sizes = [rng.choice([n for n in (1, 2, 3, 4) if BATCH % (n * processes) == 0]) for processes in (before, after)]
        flags = f"{ELASTIC} {ELASTIC_RUNS[name]}"

        def cut(size: int, processes: int, flags: str = flags) -> str:
            accumulation = BATCH // (size * processes)
            return f"{flags} --per_device_train_batch_size {size} --gradient_accumulation_steps {accumulation}"

        if name != "streaming" and name not in expected:
            if train(folder / name, cut(BATCH, 1)) != 0:
                return index, [f"{name}: {last_line(folder / name)}"]
            expected[name] = outcome_of(folder / name)
        run, at = folder / f"elastic-{index}", rng.randint(1, OPERATIONS)
        killed = train_on(before, run, cut(sizes[0], before), at)
        checkpoint = RunFolder(run).checkpoint
        refused = name == "streaming" and checkpoint is not None
        status = train_on(after, run, cut(sizes[1], after))
        problem = ""
        if (killed, status) != (KILLED, 2 * refused):
            problem = f"exit status {killed}, {status}: {last_line(run)}"
        elif refused and "a stream must be resumed on as many processes" not in last_line(run):
            problem = last_line(run)
        elif name in expected:  # of a stream each process reads its own share: there is no run of one process
            problem = difference(*(comparable(one, step_of(checkpoint)) for one in (outcome_of(run), expected[name])))
        where = f"{name}, {before} processes of {sizes[0]}, killed at operation {at}"
        line = f"{where} after {checkpoint and checkpoint.name}, then {after} of {sizes[1]}"
        end = "refused" if refused else "equal" if name in expected else "begun again"
        print(f"{line}: {problem or end}", flush=True)
        wrong += [f"{line}: {problem}"] if problem else []
    return number, wrong


def kill_all(folder: Path, number: int | None = None) -> tuple[int, list[str]]:
    """Check `number` points, evenly spread over all runs (None: every one); how many, and what went wrong at which."""
    warm_up(folder)
    points: list[tuple[str, int, str]] = []
    expected = {}
    for name, flags in RUNS.items():
        if train(folder / name, flags, operations=folder / "operations.json") != 0:
            return 0, [f"{name}: {last_line(folder / name)}"]
        expected[name] = outcome_of(folder / name)
        assert expected[name]["steps"] == STEPS and expected[name]["weights"] and len(expected[name]["log"]) > 1
        operations = json.loads((folder / "operations.json").read_text())
        points += [(name, at, operation) for at, operation in enumerate(operations, 1)]
    count = min(number or len(points), len(points))
    wrong: list[str] = []
    for index in range(1, count + 1):
        name, at, operation = points[index * len(points) // count - 1]
        problem = check_point(folder / f"{name}-{at}", RUNS[name], at, expected[name])
        if problem is not None:
            wrong.append(f"{name}, operation {at} ({operation}): {problem}")
            print(wrong[-1], flush=True)
    return count, wrong


def warm_up(folder: Path) -> None:
    """Write the data and import everything, so that a forked child imports nothing."""
    import torch

    from stepjepa.cli.main import main
    from support.rows import step_rows, write

    torch.set_num_threads(1)
    for file, seed in (("rows.jsonl", 0), ("eval.jsonl", 1)):
        write(folder / file, step_rows(20, seed=seed))
    command = f"train --train_file {folder / 'rows.jsonl'} --output_dir {folder / 'warm_up'} {COMMON} --lora"
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        assert main(command.split()) == 0
    gc.collect()
    gc.freeze()  # and go through none of it in search of garbage


def main_of_kill() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, help="how many, spread over all; every one by default")
    parser.add_argument("--elastic", type=int, metavar="N", help="resume N runs on another number of processes")
    options = parser.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder, elastic = Path(temporary), options.elastic
        number, wrong = kill_elastic(folder, elastic) if elastic else kill_all(folder, options.points)
    print(f"{number} points in {time.monotonic() - begin:.0f} s: {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    sys.exit(main_of_kill())
