"""How many raw rows a second `stepjepa prepare` turns into chat rows, with one process and with more.

Rows of a GSM8K file are written several times over, so that starting up weighs little; the arms take turns, and each
prepares the same file from reading to the last rename. Memory is the largest that a process of the arm held.

    python benchmarks/prepare_speed.py
    python benchmarks/prepare_speed.py --rows 200000 --num_proc 1 2 4 --rounds 5
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
from pathlib import Path

from stepjepa import prepare

_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--gsm8k", type=Path, default=_DATA / "gsm8k_train.jsonl", help="questions/answers, JSONL")
    parser.add_argument("--rows", type=int, default=75_000)
    parser.add_argument("--num_proc", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures here")
    return parser.parse_args()


def write_source(file: Path, given: Path, rows: int) -> str:
    """Write `rows` rows, those of `given` over and over; returns what they are."""
    if given.is_file():
        lines, what = [line for line in given.read_bytes().split(b"\n") if line.strip()], str(given)
    else:
        texts = [
            f"She has {n} apples.\nTwice as many are 2*{n} = <<2*{n}={2 * n}>>{2 * n}.\n#### {2 * n}" for n in range(50)
        ]
        lines = [
            json.dumps({"question": f"What is twice {n}?", "answer": text}).encode() for n, text in enumerate(texts)
        ]
        what = f"generated rows ({given} is absent)"
    with open(file, "wb") as out:
        for start in range(0, rows, len(lines)):
            out.write(b"\n".join(lines[: rows - start]) + b"\n")
    return what


def timed(source: Path, folder: Path, processes: int) -> float:
    """Seconds of one run."""
    start = time.perf_counter()
    prepare(str(source), output_file=str(folder / "out.jsonl"), num_proc=processes, overwrite=True)
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    args = parse_args()
    speeds: dict[int, list[float]] = {processes: [] for processes in args.num_proc}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "raw.jsonl"
        what = write_source(source, args.gsm8k, args.rows)
        print(f"{args.rows:,} rows, {source.stat().st_size / 2**20:.0f} MiB, of {what}; {os.cpu_count()} cores")
        for _ in range(args.rounds):
            for processes in args.num_proc:
                speeds[processes].append(args.rows / timed(source, folder, processes))
    first = statistics.median(speeds[args.num_proc[0]])
    for processes, measured in speeds.items():
        middle = statistics.median(measured)
        spread = f"{min(measured):,.0f} to {max(measured):,.0f}"
        print(
            f"num_proc {processes}: {middle:,.0f} rows/s ({spread}), {middle / first:.2f} x num_proc {args.num_proc[0]}"
        )
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    peak = max(resource.getrusage(kind).ru_maxrss for kind in kinds) / 1024
    print(f"peak memory of a process: {peak:.0f} MiB")
    if args.json:
        figures = {"rows": args.rows, "source": what, "rows_per_second": speeds, "peak_mib": peak}
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
