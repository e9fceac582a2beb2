"""How time and peak memory grow with rows, row length, vocabulary, K, pairs and processes, against plain fine-tuning.

Every line trains on the same rows (`rows`: reads and tokenises them; `collator`: lays them out) with and without a JEPA
objective, in turns, on one thread. Time is the processor's, so that a busy machine disturbs it less. The rows of steps are
digits, a token each. Peak memory is that of the first step, without the weights.

    python benchmarks/scale.py
    python benchmarks/scale.py --quick --only length pairs
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from arms import Arm, common_arguments
from measure import peak_mib, ratio, table
from workload import read_chats, write_source

from stepjepa import JEPAConfig, JEPATrainer
from stepjepa.forest.visibility import BLOCK_SIZE
from stepjepa.modeling.load import PRESETS, load_tokenizer
from stepjepa.training.datasets import encode
from stepjepa.training.sampling import Draw

_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
REGULAR: dict[str, Any] = {"objective": "regular"}
JEPA: dict[str, Any] = {"objective": "step_jepa", "step_splitter": "separator", "predictors": 2}
ALL = {**JEPA, "step_pairs": "all"}
QUESTION = 32  # tokens


class Shape(NamedTuple):
    """What a line of a section trains on: chats of `tokens` tokens, with `steps` steps, `rows` of them a step."""

    tokens: int = 256
    steps: int = 4
    rows: int = 4
    vocabulary: int | None = None


# Of each section the lines, the smallest first; --quick takes the first two.
SECTIONS: dict[str, dict[int, tuple[Shape, dict[str, Any]]]] = {
    "length": {n: (Shape(tokens=n, rows=1), JEPA) for n in (256, 1024, 4096, 16384)},
    "vocabulary": {n: (Shape(vocabulary=n), JEPA) for n in (2048, 32768, 131072, 262144)},
    "predictors": {k: (Shape(), {**JEPA, "predictors": k}) for k in (0, 1, 2, 4, 8, 16)},
    "pairs": {n - 1: (Shape(tokens=512, steps=n), ALL) for n in (2, 3, 5, 9, 17, 33)},
}
ROWS = (1000, 4000, 16000)
PROCESSES = (1, 2)
CHATS = (4, 16, 64)  # in which the collator gets its tokens
TOKENS = 16384
NAMES = ("rows", *SECTIONS, "collator", "processes", "peak")


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES), help="sections; default: all")
    parser.add_argument("--quick", action="store_true", help="two lines a section, one round: under two minutes")
    parser.add_argument("--model", choices=["micro", "tiny", "mini"], default="tiny", help="`peak` takes mini")
    parser.add_argument("--rounds", type=int, help="timed rounds after the warm-up step; default: 3, 1 with --quick")
    parser.add_argument("--gsm8k", type=Path, default=_DATA / "gsm8k_train.jsonl", help="for `rows` and `peak`, JSONL")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)  # one of several processes
    args = parser.parse_args()
    if args.rounds is None:
        args.rounds = 1 if args.quick else 3
    if args.rounds < 1:
        parser.error(f"--rounds is {args.rounds}; it must be at least 1")
    return args


def chat(shape: Shape) -> dict[str, Any]:
    """A row of about `shape.tokens` tokens, cut into steps of one length."""
    step = "7" * max(1, (shape.tokens - QUESTION) // shape.steps - 1)
    texts = {"user": "5" * QUESTION, "assistant": "\n\n".join([step] * shape.steps)}
    return {"messages": [{"role": role, "content": text} for role, text in texts.items()]}


def arm_of(
    method: dict[str, Any], model: str, rows: list[dict[str, Any]], size: int, vocabulary: int | None = None
) -> Arm:
    """An arm of this library that passes over `rows` once a round, `size` a step.

    Args:
        vocabulary: entries of the LM softmax; None for those of the tokenizer, which is trained on the rows.
    """
    tokenizer = load_tokenizer(model, (message["content"] for row in rows for message in row["messages"]))
    shape = PRESETS[model].config(tokenizer)
    shape.vocab_size = vocabulary or shape.vocab_size
    torch.manual_seed(0)
    options = {**method, **common_arguments(tempfile.gettempdir(), size)}
    config = JEPAConfig(max_length=2**15, track_flop=True, **options)
    trainer = JEPATrainer(transformers.LlamaForCausalLM(shape), config, rows, processing_class=tokenizer)
    arm = Arm(method["objective"], trainer, np.ones(len(rows)), len(rows) // size // config.world_size)
    if config.world_size > 1:
        trainer.model = trainer.accelerator.prepare(trainer.model)
    return arm


def in_turns(rounds: int, works: Sequence[Callable[[], object]]) -> dict[str, Any]:
    """Peak memory of plain and JEPA work, then seconds of each in turns: the figures of a line."""
    memory, seconds = [peak_mib(work) for work in works], [list[float]() for _ in works]
    for number in range(rounds):
        for which in (0, 1) if number % 2 else (1, 0):
            start = time.process_time()
            works[which]()
            seconds[which].append(time.process_time() - start)
    medians = [statistics.median(taken) for taken in seconds]
    return {"seconds": medians, "ratio": ratio(seconds[1], seconds[0]), "peak_mib": memory}


def step(shape: Shape, method: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """A line of one training step."""
    rows = [chat(shape)] * shape.rows * int(os.environ.get("WORLD_SIZE", 1))
    arms = [arm_of(each, args.model, rows, shape.rows, shape.vocabulary) for each in (REGULAR, method)]
    return in_turns(args.rounds, [arm.run for arm in arms])


def tokenise(count: int, args: argparse.Namespace) -> dict[str, Any]:
    """A line of reading and tokenising `count` rows."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.jsonl"
        write_source(file, args.gsm8k, count)
        chats, _ = read_chats("gsm8k", args.gsm8k, 1000)
        tokenizer = load_tokenizer(args.model, (message["content"] for chat in chats for message in chat))
        every = {**ALL, "step_splitter": "lines"}
        options = [JEPAConfig(output_dir=folder, use_cpu=True, **method) for method in (REGULAR, every)]
        works = [partial(encode, str(file), tokenizer, each) for each in options]
        return in_turns(args.rounds, works)


def collation(chats: int, args: argparse.Namespace) -> dict[str, Any]:
    """A line of laying out a batch of 16,384 tokens in so many chats as a GPU takes it: what a worker of the data loader
    does while the device computes."""
    shape, works = Shape(tokens=TOKENS // chats, rows=chats), []
    for method in (REGULAR, ALL):
        trainer: Any = arm_of(method, args.model, [chat(shape)] * chats, chats).trainer
        collate = replace(trainer.data_collator, segmented=False, pad_to_multiple_of=BLOCK_SIZE)
        works.append(partial(_laid_out, collate, trainer.train_dataset, chats))
    return in_turns(args.rounds, works)


def _laid_out(collate: Any, dataset: Any, chats: int) -> Any:
    return collate([dataset[Draw(0, row)] for row in range(chats)])


def distributed(processes: int, args: argparse.Namespace) -> dict[str, Any]:
    """A line of one training step, of as many rows in each of several processes; figures are the first one's."""
    run = ["torch.distributed.run", "--standalone", f"--nproc_per_node={processes}", __file__]
    run += ["--worker", "--model", args.model, "--rounds", str(args.rounds)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", *run], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def peak(args: argparse.Namespace) -> dict[str, Any]:
    """FLOPs a second of plain training with `mini` and of the best of a few products of square matrices, in turns."""
    chats, _ = read_chats("gsm8k", args.gsm8k, 16)
    arm = arm_of(REGULAR, "mini", [{"messages": chat} for chat in chats], len(chats))
    trainer: Any = arm.trainer
    work = sum(trainer.floating_point_ops(batch) for batch in trainer.get_train_dataloader())
    squares = [torch.randn(size, size) for size in (256, 512, 1024, 2048)]

    def speed(flops: float, run: Callable[[], object]) -> float:
        start = time.process_time()
        run()
        return flops / (time.process_time() - start)

    def product(square: torch.Tensor) -> float:
        times = (2048 // len(square)) ** 2
        return speed(2 * times * len(square) ** 3, lambda: [torch.mm(square, square) for _ in range(times)])

    arm.run()
    best, own = [], []
    for _ in range(args.rounds):
        best.append(max(map(product, squares)))
        own.append(speed(work, arm.run))
    return {"matrix_flops": statistics.median(best), "step_flops": statistics.median(own), "share": ratio(own, best)}


def print_section(name: str, lines: dict[int, dict[str, Any]]) -> None:
    """The table of a section."""
    rate = name == "rows"
    cells = []
    for line, figures in lines.items():
        cost, memory = figures["ratio"], figures["peak_mib"]
        cells.append([f"{line:,}"])
        cells[-1] += [f"{line / taken:,.0f}" if rate else f"{1000 * taken:,.1f}" for taken in figures["seconds"]]
        cells[-1] += [f"{cost['median']:.2f}x", f"{cost['min']:.2f}..{cost['max']:.2f}"]
        cells[-1] += [f"{size:,.1f}" for size in memory] + [f"{memory[1] / max(memory[0], 0.1):.2f}x"]
    unit = "rows/s" if rate else "ms"
    header = [name, f"plain {unit}", f"JEPA {unit}", "cost", "rounds", "plain MiB", "JEPA MiB", "memory"]
    print(f"\n{table(header, cells)}", flush=True)


def main() -> None:
    """Measure and print."""
    args = parse_args()
    torch.set_num_threads(1)
    Arm.clock = staticmethod(time.process_time)
    transformers.logging.set_verbosity_error()
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    step(Shape(rows=1), JEPA, args)  # what the first step of a process allocates belongs to no line
    if args.worker:
        figures = step(Shape(), JEPA, args)
        if os.environ["RANK"] == "0":
            print(json.dumps(figures))
        return
    print(
        f"{args.model}, float32, one thread a process, processor time, {args.rounds} rounds; torch {torch.__version__}"
    )
    few = 2 if args.quick else None
    runs: dict[str, dict[int, Callable[[], dict[str, Any]]]] = {
        "rows": {count: partial(tokenise, count, args) for count in ROWS[:few]},
        **{
            name: {line: partial(step, *given, args) for line, given in list(lines.items())[:few]}
            for name, lines in SECTIONS.items()
        },
        "collator": {count: partial(collation, count, args) for count in CHATS[:few]},
        "processes": {count: partial(distributed, count, args) for count in PROCESSES},
    }
    results: dict[str, Any] = {}
    for name in runs:
        if name in args.only:
            if name == "rows":
                tokenise(100, args)  # likewise
            results[name] = {line: run() for line, run in runs[name].items()}
            print_section(name, results[name])
    if "peak" in args.only:
        results["peak"] = figures = peak(args)
        matrix, own = (figures[key] / 1e9 for key in ("matrix_flops", "step_flops"))
        share = "{median:.0%} ({min:.0%} to {max:.0%})".format(**figures["share"])
        print(f"\npeak\nsquare torch.mm {matrix:.1f} GFLOP/s, plain training of mini {own:.1f} GFLOP/s: {share}")
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
