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
import io
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

KILLED = 99
STEPS = 5
COMMON = (
    f"--model_name tiny --step_jepa --max_steps {STEPS} --save_steps 2 --save_total_limit 1 --logging_steps 3 --lbd 0.5 "
    "--lr_scheduler_type constant --learning_rate 0.01 --per_device_train_batch_size 4 --disable_tqdm true --seed 3"
).split()
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

    def count(self, kind: str, path: Any, end: Callable[[], None] | None = None) -> None:
        """Count an operation that is about to happen; `end` leaves what a kill in the midst of it leaves."""
        if os.getpid() != self.process or not self.inside(path):
            return
        self.seen.append(f"{kind} {os.path.relpath(os.path.abspath(path), self.folder)}")
        if len(self.seen) == self.at:
            if end is not None:
                end()
            os._exit(KILLED)

    def inside(self, path: Any) -> bool:
        return isinstance(path, (str, os.PathLike)) and os.path.abspath(path).startswith(self.folder)

    def cut(self, path: Any) -> None:
        with suppress(FileNotFoundError):  # a lock is removed before it is closed
            os.truncate(path, os.path.getsize(path) // 2)

    def install(self) -> None:
        """Put the counting functions in place of the real ones, for the rest of this process."""
        for name in ("replace", "rename", "unlink", "remove", "rmdir", "mkdir"):
            self._before(os, name)
        shutil._use_fd_functions = False  # type: ignore[attr-defined]  # so that rmtree names whole paths
        real_open = os.open

        def counted_open(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            if flags & os.O_CREAT:
                self.count("create", path)
            return real_open(path, flags, *args, **kwargs)

        os.open = counted_open  # type: ignore[assignment]
        builtins.open = io.open = self._opening(io.open)  # type: ignore[assignment]

        import safetensors.torch
        import torch
        from transformers.tokenization_utils_tokenizers import TokenizersBackend

        self._writer(torch, "save", lambda _, path, *__: path)
        self._writer(safetensors.torch, "serialize_file", lambda _, path, *__: path)
        self._writer(
            TokenizersBackend,
            "_save_pretrained",
            lambda _, save_directory, *__: Path(save_directory) / "tokenizer.json",
        )

    def _before(self, module: Any, name: str) -> None:
        real = getattr(module, name)

        def counted(path: Any, *args: Any, **kwargs: Any) -> Any:
            if os.path.lexists(path) != (name == "mkdir"):  # else nothing changes
                self.count(name, path)
            return real(path, *args, **kwargs)

        setattr(module, name, counted)

    def _writer(self, owner: Any, name: str, path_of: Callable[..., Any]) -> None:
        """A function that writes a whole file, outside of Python's own: a kill leaves it empty, or half of it."""
        real = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            path = path_of(*args, **{key: value for key, value in kwargs.items() if key == "save_directory"})
            self.count("open", path, lambda: Path(path).write_bytes(b""))
            result = real(*args, **kwargs)
            self.count("close", path, lambda: self.cut(path))
            return result

        setattr(owner, name, counted)

    def _opening(self, real: Any) -> Any:
        def counted(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            writes = any(letter in mode for letter in "wxa+") and self.inside(path)
            file = real(path, mode, *args, **kwargs)
            if writes:
                self.count("open", path)
                close = file.close

                def closing() -> None:
                    if not file.closed:
                        file.flush()
                        self.count("close", path, lambda: self.cut(path))
                    close()

                file.close = closing
            return file

        return counted


def train(folder: Path, flags: list[str], at: int = 0, operations: Path | None = None) -> int:
    """``stepjepa train`` in a forked child; its exit status, `KILLED` where it was killed at operation `at`."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 70
    try:
        log = os.open(folder.parent / f"{folder.name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(folder.parent)
        from stepjepa.cli.main import main

        faults = Faults(folder, at)
        faults.install()
        argv = ["train", "--train_file", "rows.jsonl", "--output_dir", str(folder), *COMMON, *flags]
        status = main(argv)
        if operations is not None:
            faults.at = -1
            operations.write_text(json.dumps(faults.seen))
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def outcome_of(folder: Path) -> dict[str, Any]:
    """What must be equal: weights, metrics, log, the number of steps, and which checkpoints are left."""
    from support.runs import result_of

    checkpoints = sorted(path.name for path in folder.glob("checkpoint-*"))
    steps = json.loads((folder / "metrics.json").read_text())["steps"]
    return {**result_of(folder), "steps": steps, "checkpoints": checkpoints}


def check_point(place: Path, name: str, at: int, expected: dict[str, Any]) -> str | None:
    """Kill a run at an operation and start it again; what differs from `expected`, None where nothing does."""
    folder = place / f"{name}-{at}"
    flags = [*RUNS[name].split(), "--resume_from_checkpoint", "true"]
    status = train(folder, flags, at)
    if status != KILLED:
        return f"the run was to be killed and ended with {status}: {last_line(folder)}"
    status = train(folder, flags)
    if status != 0:
        return f"exit status {status}: {last_line(folder)}"
    found = outcome_of(folder)
    wrong = [part for part, value in expected.items() if found[part] != value]
    shutil.rmtree(folder)
    return f"differs in {', '.join(wrong)}" if wrong else None


def last_line(folder: Path) -> str:
    lines = (folder.parent / f"{folder.name}.log").read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def spread(points: list[Any], number: int | None) -> list[Any]:
    """`number` of them, evenly spread, the last one always; all for None."""
    if number is None or number >= len(points):
        return points
    return [points[(index + 1) * len(points) // number - 1] for index in range(number)]


def kill_all(place: Path, number: int | None = None) -> tuple[int, list[str]]:
    """Check `number` points over all runs (None: every one); how many, and what went wrong at which."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import torch

    import stepjepa.cli.train
    import stepjepa.training.run  # noqa: F401  # for the children
    from support.rows import step_rows

    torch.set_num_threads(1)
    for file, seed in (("rows.jsonl", 0), ("eval.jsonl", 1)):
        lines = (json.dumps(row) + "\n" for row in step_rows(20, seed=seed))
        (place / file).write_text("".join(lines))
    wrong: list[str] = []
    points: list[tuple[str, int, str]] = []
    expected = {}
    for name, flags in RUNS.items():
        folder = place / name
        if train(folder, flags.split(), operations=place / "operations.json") != 0:
            return 0, [f"{name}: {last_line(folder)}"]
        expected[name] = outcome_of(folder)
        assert expected[name]["steps"] == STEPS and expected[name]["weights"] and len(expected[name]["log"]) > 1
        operations = json.loads((place / "operations.json").read_text())
        points += [(name, at, operation) for at, operation in enumerate(operations, 1)]
    chosen = spread(points, number)
    for name, at, operation in chosen:
        problem = check_point(place, name, at, expected[name])
        if problem is not None:
            wrong.append(f"{name}, operation {at} ({operation}): {problem}")
            print(wrong[-1], flush=True)
    return len(chosen), wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, help="how many, spread over all; every one by default")
    parser.add_argument("--folder", help="where the runs go; a temporary folder by default")
    options = parser.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(options.folder or temporary)
        place.mkdir(parents=True, exist_ok=True)
        number, wrong = kill_all(place, options.points)
    print(f"{number} points in {time.monotonic() - begin:.0f} s: {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    for variable, value in (("OMP_NUM_THREADS", "1"), ("HF_HUB_OFFLINE", "1"), ("TOKENIZERS_PARALLELISM", "false")):
        os.environ[variable] = value
    sys.exit(main())
