"""What a step of each objective costs on a planning task with a model of 0.2M parameters: one line an arm.

The task is a path-star graph of two arms of `--path_length` nodes, the model the preset `micro`, one thread. The arms take
turns as in `step_cost.py`; the clock is the processor's, so that a busy machine disturbs it less.

    python benchmarks/planning.py
    python benchmarks/planning.py --arms plain "step_jepa plan" --profile 25
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from arms import Arm, common_arguments
from measure import ratio, table
from step_cost import measure_rounds

from stepjepa import JEPAConfig, JEPATrainer
from stepjepa.data.tasks import generate_rows, make_task
from stepjepa.modeling.load import load_model, load_tokenizer

MODEL = "micro"


def arms_of(horizon: int) -> dict[str, dict[str, Any]]:
    """The arms by name; `horizon` is the number of steps of an answer."""
    plan = {"objective": "step_jepa", "step_pairs": "plan", "horizon": horizon, "lbd": 1.0}
    infonce = {**plan, "jepa_loss": "infonce", "infonce_temperature": 0.1, "predictor_head": "mlp"}
    return {
        "plain": {"objective": "regular"},
        "multi_token": {
            "objective": "multi_token",
            "token_horizon": horizon,
            "token_positions": "question",
            "lbd": 1.0,
        },
        "next_latent": {"objective": "next_latent", "latent_horizon": horizon - 1, "lbd": 1.0},
        "step_jepa plan": {**infonce, "predictors": 0},
        "step_jepa plan, K = 1": {**infonce, "predictors": 1},
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--path_length", type=int, default=5)
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=5, help="optimizer steps of an arm in a round")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds after the warm-up round")
    parser.add_argument("--arms", nargs="+", help="names of arms; default: all")
    parser.add_argument(
        "--profile", type=int, metavar="N", help="then print the N functions that take most, for each arm"
    )
    parser.add_argument("--json", type=Path, help="write the results here")
    args = parser.parse_args()
    torch.set_num_threads(1)
    Arm.clock = staticmethod(time.process_time)
    transformers.logging.set_verbosity_error()
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    known = arms_of(args.path_length - 1)
    if unknown := set(args.arms or ()) - known.keys():
        parser.error(f"no arm {', '.join(sorted(unknown))}; there are: {', '.join(known)}")
    rows = generate_rows(args.batch_size * args.steps, 0, make_task("path_star", path_length=args.path_length))
    tokenizer = load_tokenizer(MODEL, (message["content"] for row in rows for message in row["messages"]))
    with tempfile.TemporaryDirectory() as folder:
        arms = []
        for name in args.arms or known:
            config = JEPAConfig(**known[name], **common_arguments(folder, args.batch_size))
            trainer = JEPATrainer(load_model(MODEL, tokenizer), config, rows, processing_class=tokenizer)
            arms.append(Arm(name, trainer, np.ones(len(rows)), args.steps))
        work = measure_rounds(arms, args.rounds)
    seconds = {name: [done.seconds / done.steps for done in rounds] for name, rounds in work.items()}
    lines, results = [], dict[str, Any]()
    for name, taken in seconds.items():
        positions = work[name][0].positions // args.steps
        cost = ratio(taken, next(iter(seconds.values())))
        results[name] = {"seconds": statistics.median(taken), "ratio": cost, "positions": positions}
        spread = f"{1000 * min(taken):.0f}..{1000 * max(taken):.0f}"
        lines.append([name, f"{1000 * statistics.median(taken):.0f}", spread, f"{cost['median']:.2f}x", str(positions)])
    print(f"path-star, path length {args.path_length}, {args.batch_size} examples a step; {MODEL}, float32, one thread")
    print(table(["arm", "ms a step", "rounds", "to the first", "positions"], lines))
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    for arm in arms if args.profile else ():
        profile = cProfile.Profile(time.process_time)
        profile.runcall(arm.run, 2 * args.steps)
        print(f"\n{arm.name}: {2 * args.steps} steps")
        pstats.Stats(profile).sort_stats("tottime").print_stats(args.profile)


if __name__ == "__main__":
    main()
