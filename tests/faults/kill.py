"""Kill runs at file operations, and compare what the next start makes of them with a run that nobody disturbed.

``python tests/faults/kill.py [--points N] [--folder DIR]``: N points spread over all of them; without N, every one. A
process that has imported everything forks a child for each run. The child counts its writes (when a file is opened and when
it is closed), renames, removals and new folders inside the run's folder, and ends at the n-th: a file that is being written
is cut in half. The same command with ``--resume_from_checkpoint true`` must end with the same weights, ``metrics.json`` and
log, bit for bit, and without a step too many. Exit status 0 where every point does.
"""

from __future__ import annotations

import argparse
import builtins
import gc
import io
import json
import os
import shutil
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


class Faults:
    """Counts file operations inside a folder, and ends the process at one of them.

    Args:
        folder: of the run.
        at: the number of the operation, from 1; 0 for none.
    """

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
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 70
    try:
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
    """What must be equal: weights, metrics, log, the number of steps, and which checkpoints are left."""
    from support.runs import result_of

    steps = json.loads((folder / "metrics.json").read_text())["steps"]
    checkpoints = sorted(path.name for path in folder.glob("checkpoint-*"))
    return {**result_of(folder), "steps": steps, "checkpoints": checkpoints}


def last_line(folder: Path) -> str:
    lines = (folder.parent / f"{folder.name}.log").read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def check_point(folder: Path, flags: str, at: int, expected: dict[str, Any]) -> str | None:
    """Kill a run at an operation and start it again; what differs from `expected`, None where nothing does."""
    flags += " --resume_from_checkpoint true"
    for killed, wanted in ((at, KILLED), (0, 0)):
        status = train(folder, flags, killed)
        if status != wanted:
            return f"exit status {status}, not {wanted}: {last_line(folder)}"
    found = outcome_of(folder)
    wrong = [part for part, value in expected.items() if found[part] != value]
    shutil.rmtree(folder)
    return f"differs in {', '.join(wrong)}" if wrong else None


def kill_all(folder: Path, number: int | None = None) -> tuple[int, list[str]]:
    """Check `number` points, evenly spread over all runs (None: every one); how many, and what went wrong at which."""
    import torch

    from stepjepa.cli.main import main
    from support.rows import step_rows

    torch.set_num_threads(1)
    for file, seed in (("rows.jsonl", 0), ("eval.jsonl", 1)):
        (folder / file).write_text("".join(json.dumps(row) + "\n" for row in step_rows(20, seed=seed)))
    warm_up = f"train --train_file {folder / 'rows.jsonl'} --output_dir {folder / 'warm_up'} {COMMON} --lora"
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        assert main(warm_up.split()) == 0  # so that the children import nothing
    gc.collect()
    gc.freeze()  # and go through none of it in search of garbage
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


def main_of_kill() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, help="how many, spread over all; every one by default")
    parser.add_argument("--folder", help="where the runs go; a temporary folder by default")
    options = parser.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.folder or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        number, wrong = kill_all(folder, options.points)
    print(f"{number} points in {time.monotonic() - begin:.0f} s: {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    sys.exit(main_of_kill())
