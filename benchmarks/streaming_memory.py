"""Resident memory of training on a stream, and of reading a whole stream, against the size of the file.

Makes a JSONL file of chats of the size asked for. Then, each in a process of its own whose largest resident set is read from
the kernel:

- ``train``: `stepjepa train --streaming` for some steps (the model included);
- ``read``: every example of one pass over the file, encoded and shuffled window by window, without a model;
- ``whole``: `stepjepa train` without streaming, on the first `--whole_rows` rows, for comparison.

    python benchmarks/streaming_memory.py
    python benchmarks/streaming_memory.py --gib 0.2 --steps 50
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from stepjepa.data.sources import RowSource, texts_of
from stepjepa.modeling.load import load_tokenizer
from stepjepa.training.config import JEPAConfig
from stepjepa.training.encoding import ExampleReader

_MIB = 2**20
_WORDS = "the number of apples in every basket grows by two and three more are given away before noon".split()


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--gib", type=float, default=2.0, help="size of the file")
    parser.add_argument("--paragraphs", type=int, default=40, help="steps of an answer")
    parser.add_argument("--steps", type=int, default=200, help="optimizer steps of train")
    parser.add_argument("--shuffle_buffer", type=int, default=10_000)
    parser.add_argument("--whole_rows", type=int, default=20_000)
    parser.add_argument("--arms", nargs="+", default=["train", "read", "whole"], choices=["train", "read", "whole"])
    parser.add_argument("--folder", type=Path, help="where the file is made; default: a temporary folder")
    parser.add_argument("--arm", help=argparse.SUPPRESS)
    return parser.parse_args()


def _words(start: int) -> str:
    return " ".join(_WORDS[(start + i) % len(_WORDS)] for i in range(24))


def write_file(file: Path, size: int, paragraphs: int) -> int:
    """Chats of `paragraphs` steps, no two alike, until the file has `size` bytes; returns the rows."""
    rows = written = 0
    with open(file, "w", encoding="utf-8") as out:
        while written < size:
            steps = [
                f"Step {number}: {_words(rows + number * 7)} {rows * number}." for number in range(1, paragraphs + 1)
            ]
            line = json.dumps({"question": f"What becomes of basket {rows}?", "answer": "\n\n".join(steps)})
            written += out.write(line + "\n")
            rows += 1
    return rows


def train(file: Path, args: argparse.Namespace, *flags: str) -> None:
    """The command, in this process."""
    from stepjepa.cli.main import main as stepjepa

    with tempfile.TemporaryDirectory() as output:
        given = f"train --train_file {file} --model_name tiny --step_jepa --step_pairs first --max_length 512 --batch_size 4"
        given += f" --max_steps {args.steps} --save_strategy no --logging_steps 50 --disable_tqdm true"
        status = stepjepa([*given.split(), "--output_dir", f"{output}/run", *flags])
    if status:
        raise SystemExit(status)


def read(file: Path, args: argparse.Namespace) -> None:
    """One pass of examples."""
    with tempfile.TemporaryDirectory() as output:
        config = JEPAConfig(
            output_dir=output, objective="step_jepa", streaming=True, max_steps=1, shuffle_buffer=args.shuffle_buffer,
            max_length=8192,
        )  # fmt: skip
        tokenizer = load_tokenizer("tiny", texts_of([str(file)], limit=500))
        stream = ExampleReader(tokenizer, config, None).read_training(RowSource(file))
        examples = tokens = 0
        begin = time.perf_counter()
        for batch in stream.batches(16):
            examples += len(batch)
            tokens += sum(len(example.trunk) for example in batch)
            if examples >= args.whole_rows:
                break
        seconds = time.perf_counter() - begin
        print(
            f"{examples:,} examples, {tokens:,} tokens in {seconds:.0f} s: {examples / seconds:,.0f} examples a second"
        )


def main() -> None:
    """Make the file and run the arms."""
    args = parse_args()
    if args.arm:
        file = Path(args.folder)
        if args.arm == "read":
            read(file, args)
        else:
            train(file, args, *(["--streaming", "--shuffle_buffer", str(args.shuffle_buffer)] * (args.arm == "train")))
        print(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / _MIB:.0f} MiB")
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        file, part = Path(folder) / "chats.jsonl", Path(folder) / "part.jsonl"
        rows = write_file(file, int(args.gib * 2**30), args.paragraphs)
        print(
            f"{file.stat().st_size / 2**30:.2f} GiB, {rows:,} rows of {file.stat().st_size / rows:,.0f} bytes",
            flush=True,
        )
        with open(file, encoding="utf-8") as whole, open(part, "w", encoding="utf-8") as out:
            out.writelines(line for _, line in zip(range(args.whole_rows), whole, strict=False))
        for arm in args.arms:
            command = [sys.executable, __file__, "--arm", arm, "--folder", str(part if arm == "whole" else file)]
            command += ["--steps", str(args.steps), "--shuffle_buffer", str(args.shuffle_buffer)]
            command += ["--whole_rows", str(rows)]
            done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
            if done.returncode:
                raise SystemExit(done.stderr)
            print(f"{arm}: {' | '.join(done.stdout.splitlines()[-1 if arm != 'read' else -2 :])}", flush=True)


if __name__ == "__main__":
    main()
