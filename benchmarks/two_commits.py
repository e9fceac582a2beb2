"""One commit against another, in one run: training steps, tokenising, prepare and start-up.

Both commits are checked out into temporary folders. Each has a process of its own for training, and the two take turns in
every round, so that drifts of the machine hit both alike; a ratio is taken round by round. Only public names are used, so
that the commits may differ in everything else.

    python benchmarks/two_commits.py a4c7c26 HEAD
    python benchmarks/two_commits.py a4c7c26 HEAD --arms gsm8k_step --rounds 9
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
_COMMON = {"predictors": 2, "lbd": 0.1}
# Arm -> data set and options of `JEPAConfig`. A ratio above 1 means that the second commit is faster.
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "nl_rx_regular": ("nl_rx", {"objective": "regular"}),
    "nl_rx_llm_jepa": ("nl_rx", {"objective": "llm_jepa", **_COMMON}),
    "nl_rx_standalone": ("nl_rx", {"objective": "llm_jepa", "views": "standalone", **_COMMON}),
    "nl_rx_tube": ("nl_rx", {"objective": "semantic_tube", "lbd": 0.1}),
    "gsm8k_regular": ("gsm8k", {"objective": "regular"}),
    "gsm8k_step": ("gsm8k", {"objective": "step_jepa", "step_splitter": "lines", **_COMMON}),
    "gsm8k_all_pairs": ("gsm8k", {"objective": "step_jepa", "step_splitter": "lines", "step_pairs": "all", **_COMMON}),
    "gsm8k_two_pass": ("gsm8k", {"objective": "step_jepa", "step_splitter": "lines", "forward": "two_pass", **_COMMON}),
    "gsm8k_split": ("gsm8k", {"objective": "split", "lbd": 0.1}),
}
OTHERS = ("tokenise", "prepare", "start_up")


def worker(batch_size: int, steps: int) -> None:
    """In a checkout's process: for each line of standard input, ``{"file", "options"}``, train a few steps or tokenise, and
    print the seconds that its work took."""
    import torch
    from transformers import TrainerCallback

    from stepjepa import JEPAConfig, JEPATrainer

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))

    class Clock(TrainerCallback):  # the first step is a warm-up
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 1:
                self.begin = time.perf_counter()
            self.end = time.perf_counter()

    for line in sys.stdin:
        task = json.loads(line)
        clock = Clock()
        with tempfile.TemporaryDirectory() as folder:
            config = JEPAConfig(
                output_dir=folder,
                max_steps=steps + 1,
                per_device_train_batch_size=batch_size,
                learning_rate=1e-3,
                seed=1,
                use_cpu=True,
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
                **task["options"],
            )
            begin = time.perf_counter()
            trainer = JEPATrainer("mini", config, train_dataset=task["file"], callbacks=[clock])
            seconds = time.perf_counter() - begin
            if not task["tokenise"]:
                trainer.train()
                seconds = clock.end - clock.begin
        print(json.dumps({"seconds": seconds}), flush=True)


class Side:
    """One commit: its checkout and its process."""

    def __init__(self, commit: str, folder: Path, args: argparse.Namespace):
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(folder), commit], check=True)
        self.folder = folder
        self.environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": str(args.threads)}
        command = [sys.executable, __file__, "worker", str(args.batch_size), str(args.steps)]
        self.process = subprocess.Popen(
            command,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def train(self, file: Path, options: dict[str, Any], tokenise: bool = False) -> float:
        """Seconds of the timed steps, or of making the trainer."""
        assert self.process.stdin and self.process.stdout
        print(
            json.dumps({"file": str(file), "options": options, "tokenise": tokenise}),
            file=self.process.stdin,
            flush=True,
        )
        for line in self.process.stdout:
            if line.startswith('{"seconds"'):
                return json.loads(line)["seconds"]
        raise SystemExit(f"{self.folder}: the process ended with status {self.process.wait()} on {options}")

    def command(self, *words: str) -> float:
        """Wall seconds of a command of the library."""
        begin = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "stepjepa", *words], env=self.environment, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"{self.folder}: {' '.join(words)}: {done.stderr[-500:]}")
        return time.perf_counter() - begin

    def close(self) -> None:
        self.process.kill()
        subprocess.run(["git", "worktree", "remove", "--force", str(self.folder)], check=False)


def work(arm: str, files: dict[str, Path], folder: Path) -> Callable[[Side], float]:
    """What one side does for an arm in a round."""

    def prepare(side: Side) -> float:
        return side.command(
            "prepare", str(files["gsm8k_all"]), "--output_file", str(folder / f"{time.time_ns()}.jsonl")
        )

    def start_up(side: Side) -> float:
        output = folder / f"run{time.time_ns()}"
        return side.command(
            *("train", "--train_file", str(files["gsm8k"]), "--model_name", "tiny", "--step_jepa", "--max_steps", "1"),
            *("--output_dir", str(output), "--save_strategy", "no", "--use_cpu"),
        )

    def tokenise(side: Side) -> float:
        return side.train(
            files["gsm8k_all"], {"objective": "step_jepa", "step_splitter": "lines", "predictors": 2}, True
        )

    if arm in OTHERS:
        return {"prepare": prepare, "start_up": start_up, "tokenise": tokenise}[arm]
    data, options = ARMS[arm]
    return lambda side: side.train(files[data], options)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("commits", nargs=2, metavar="COMMIT", help="the one before, and the one after")
    parser.add_argument("--arms", nargs="+", choices=[*ARMS, *OTHERS], default=[*ARMS, *OTHERS])
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds after the warm-up round")
    parser.add_argument("--steps", type=int, default=4, help="timed optimizer steps of an arm in a round")
    parser.add_argument("--rows", type=int, default=512, help="rows that are trained on")
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument(
        "--data", type=Path, default=_DATA, help="folder of nl_rx_synth_train.jsonl and gsm8k_train.jsonl"
    )
    args = parser.parse_args()

    from measure import ratio, table

    folder = Path(tempfile.mkdtemp(prefix="two_commits-"))
    sides: list[Side] = []
    try:
        files = {"gsm8k_all": args.data / "gsm8k_train.jsonl"}
        for name, file in (("nl_rx", "nl_rx_synth_train.jsonl"), ("gsm8k", "gsm8k_train.jsonl")):
            files[name] = folder / f"{name}.jsonl"
            with open(args.data / file, encoding="utf-8") as lines:
                files[name].write_text("".join(itertools.islice(lines, args.rows)), encoding="utf-8")
        for number, commit in enumerate(args.commits):
            sides.append(Side(commit, folder / f"commit{number}", args))
        rows = []
        for arm in args.arms:
            seconds: list[list[float]] = [[], []]
            measure = work(arm, files, folder)
            for turn in range(args.rounds + 1):
                for number in (0, 1) if turn % 2 else (1, 0):
                    taken = measure(sides[number])
                    if turn:
                        seconds[number].append(taken)
            found = ratio(*seconds)
            rows.append([arm, f"{found['median']:.3f}", f"{found['min']:.3f}", f"{found['max']:.3f}"])
            print(" ".join(rows[-1]), flush=True)
        print(f"\nspeed of {args.commits[1]} over {args.commits[0]}, {args.rounds} rounds, {args.threads} threads")
        print(table(["arm", "median", "min", "max"], rows))
    finally:
        for side in sides:
            side.close()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(int(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
