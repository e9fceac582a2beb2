"""What every objective and option costs over plain fine-tuning, in measured time and in FLOPs, in one run.

The arms take turns as in `step_cost.py`, with the same rows, tokenizer, model and settings. FLOPs are those of the first
batches of the run, padding included, forward and backward (`stepjepa.modeling.flops`).

    python benchmarks/objectives.py
    python benchmarks/objectives.py --arms "step first" "step all" --rounds 9
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from arms import Arm, library_arm
from measure import ratio, table
from step_cost import _DATA, measure_rounds
from workload import Workload, load_workload, make_tokenizer

_STEP = {"objective": "step_jepa", "step_splitter": "lines", "predictors": 2}
ARMS: dict[str, dict[str, Any]] = {
    "regular": {"objective": "regular"},
    "step first": _STEP,
    "step first, jepa_ratio .25": {**_STEP, "jepa_ratio": 0.25},
    "step first, no target gradient": {**_STEP, "target_grad": False},
    "step first, EMA target": {**_STEP, "target_encoder": "ema"},
    "step first, MLP head": {**_STEP, "predictor_head": "mlp"},
    "step first, inline": {**_STEP, "forward": "inline"},
    "step random": {**_STEP, "step_pairs": "random"},
    "step all": {**_STEP, "step_pairs": "all"},
    "step all, horizons 1 2 3": {**_STEP, "step_pairs": "all", "multi_horizon": [1, 2, 3]},
    "step all, no target gradient": {**_STEP, "step_pairs": "all", "target_grad": False},
    "question -> answer in context": {"objective": "llm_jepa", "predictors": 2},
    "question -> answer standalone": {"objective": "llm_jepa", "views": "standalone", "predictors": 2},
    "split": {"objective": "split"},
    "semantic tube": {"objective": "semantic_tube"},
    "semantic tube, 4 spans": {"objective": "semantic_tube", "tube_times": 4},
}


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--gsm8k", type=Path, default=_DATA / "gsm8k_train.jsonl", help="questions/answers, JSONL")
    parser.add_argument("--nl_rx", type=Path, default=_DATA / "nl_rx_synth_train.jsonl", help="for the tokenizer")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--model", choices=["mini", "tiny"], default="mini")
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds behind the warm-up round")
    parser.add_argument("--steps", type=int, default=2, help="optimizer steps of an arm in a round")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument(
        "--clock", choices=["wall", "cpu"], default="wall", help="cpu, with --threads 1, on a busy machine"
    )
    parser.add_argument("--json", type=Path, help="write the results here")
    return parser.parse_args()


def flops_over_regular(arm: Arm) -> float:
    """FLOPs of an arm's batches over those of the same examples without pairs."""
    trainer: Any = arm.trainer
    return trainer.equal_compute[1]


def workload_of(args: argparse.Namespace) -> Workload:
    """GSM8K with the tokenizer that `step_cost.py` trains."""
    tokenizer = make_tokenizer({"nl_rx": args.nl_rx, "gsm8k": args.gsm8k}, args.rows, args.model, "llama3")
    return load_workload("gsm8k", args.gsm8k, args.rows, args.batch_size, args.model, tokenizer)


def main() -> None:
    """Run the benchmark."""
    args = parse_args()
    torch.set_num_threads(args.threads)
    if args.clock == "cpu":
        Arm.clock = staticmethod(time.process_time)
    transformers.logging.set_verbosity_error()
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    workload = workload_of(args)
    names = list(dict.fromkeys(["regular", *args.arms]))
    with tempfile.TemporaryDirectory() as folder:
        arms = [library_arm(name, ARMS[name], workload, folder, args.batch_size, args.steps) for name in names]
        flops = {arm.name: flops_over_regular(arm) for arm in arms}
        work = measure_rounds(arms, args.rounds)
    seconds = {name: [done.seconds / done.steps for done in rounds] for name, rounds in work.items()}
    results: dict[str, Any] = {}
    for name in names:
        positions = sum(done.positions for done in work[name]) / sum(done.examples for done in work[name])
        cost = ratio(seconds[name], seconds["regular"])
        results[name] = {"time": cost, "flops": flops[name], "positions_per_example": positions}
    rows = [
        [
            name,
            f"{result['time']['median']:.2f}x",
            f"{result['time']['min']:.2f}..{result['time']['max']:.2f}",
            f"{result['flops']:.2f}x",
            f"{result['positions_per_example']:.0f}",
        ]
        for name, result in results.items()
    ]
    print(f"{workload.origin}: {len(workload.chats)} rows, {args.batch_size} a step; {args.model}, float32")
    print(table(["arm", "time", "rounds", "FLOPs", "positions/example"], rows))
    print(
        f"torch {torch.__version__}, {args.threads} threads, {args.clock} clock, {args.rounds} rounds of {args.steps} steps"
    )
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
