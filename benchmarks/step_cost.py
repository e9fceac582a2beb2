"""Cost of a training step: packed JEPA against plain fine-tuning, the two-pass form, the published form and TRL.

Same model, same rows, one run. The arms take turns: every round each arm runs a few optimizer steps, beginning with
another arm each time, and a ratio of two arms is taken round by round, so that drifts of the machine hit all arms
alike. The first round is a warm-up. Everything runs on CPU in float32, TRL too (whose default is bfloat16), or with `--gpu`
in bfloat16 by autocast.

    python benchmarks/step_cost.py
    python benchmarks/step_cost.py --data nl_rx --arms regular jepa --profile jepa
    python benchmarks/step_cost.py --gpu --model FOLDER --data gsm8k --arms regular jepa jepa_sdpa
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import transformers
from arms import ARMS, Arm, Work, build_arm, method_of
from measure import peak_mib, ratio, spread, table
from workload import MAX_LENGTH, OBJECTIVES, TEMPLATES, Workload, load_workload, make_tokenizer, read_chats

from stepjepa import JEPAConfig
from stepjepa.forest.layout import build_forest, plan_rows
from stepjepa.training.datasets import encode

_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
_MEMORY_STEPS = 2

# Optimizer steps of an arm in a round: GSM8K's rows are several times as long.
STEPS = {"nl_rx": 4, "gsm8k": 2}

# (label, arm above, arm below) of the closing lines: speeds in examples/s, and peak memory.
_SPEED_LINES = (
    ("packed JEPA / doubled row", "jepa", "doubled"),
    ("packed JEPA / two-pass JEPA", "jepa", "two_pass"),
    ("packed JEPA / trl_default (plain)", "jepa", "trl_default"),
    ("packed JEPA / trl_best (plain)", "jepa", "trl_best"),
    ("regular / trl_default", "regular", "trl_default"),
    ("regular / trl_best", "regular", "trl_best"),
    ("packed JEPA cost / regular", "regular", "jepa"),
)
_MEMORY_LINES = (
    ("peak memory, doubled row / packed JEPA", "doubled", "jepa"),
    ("peak memory, packed JEPA / regular", "jepa", "regular"),
    ("peak memory, trl_best / packed JEPA", "trl_best", "jepa"),
    ("peak memory, trl_default / packed JEPA, both with checkpointing", "trl_default", "jepa_checkpointed"),
)


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default in (None, False) else super()._get_help_string(action)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0], formatter_class=_HelpFormatter)
    parser.add_argument("--nl_rx", type=Path, default=_DATA / "nl_rx_synth_train.jsonl", help="chats, JSONL")
    parser.add_argument("--gsm8k", type=Path, default=_DATA / "gsm8k_train.jsonl", help="questions/answers, JSONL")
    parser.add_argument("--data", nargs="+", choices=sorted(OBJECTIVES), default=["nl_rx", "gsm8k"])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--model", default="mini", help="mini, tiny, or a folder with a config.json (random weights)")
    parser.add_argument("--gpu", action="store_true", help="train on the GPU with bf16; the peak memory is the GPU's")
    parser.add_argument("--template", choices=sorted(TEMPLATES), default="llama3", help="chat template of all arms")
    parser.add_argument("--rows", type=int, default=512, help="rows of each data set that are trained on")
    parser.add_argument("--batch_size", type=int, default=16, help="examples of an optimizer step")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds behind the warm-up round")
    parser.add_argument(
        "--steps", type=int, help=f"optimizer steps of an arm in a round; by data set {STEPS} if not given"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of torch")
    parser.add_argument("--prepare_rows", type=int, default=8000, help="rows to time data preparation on; 0 for none")
    parser.add_argument("--skip_memory", action="store_true", help="measure no peak memory")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--profile", choices=ARMS, metavar="ARM", help="only print the profile of an arm's steps")
    parser.add_argument("--memory", choices=ARMS, metavar="ARM", help="only measure the peak memory of an arm, as JSON")
    args = parser.parse_args(argv)
    for name in ("rows", "batch_size", "rounds", "steps", "threads"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            parser.error(f"--{name} is {getattr(args, name)}; it must be at least 1")
    return args


def measure_rounds(arms: list[Arm], rounds: int) -> dict[str, list[Work]]:
    """Let the arms take turns; the warm-up round is left out."""
    work: dict[str, list[Work]] = {arm.name: [] for arm in arms}
    for number in range(rounds + 1):
        first = number % len(arms)
        for arm in arms[first:] + arms[:first]:
            done = arm.run()
            if number:
                work[arm.name].append(done)
    return work


def measure_memory(data: str, args: argparse.Namespace) -> dict[str, float]:
    """Peak memory of every arm in MiB, each in a process of its own; two run at a time and share the threads."""

    def measure(arm: str) -> float:
        command = [sys.executable, __file__, "--memory", arm, "--data", data, "--model", args.model]
        command += ["--template", args.template]
        for name in ("nl_rx", "gsm8k", "rows", "batch_size"):
            command += [f"--{name}", str(getattr(args, name))]
        command += ["--threads", str(max(1, args.threads // 2))]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        return json.loads(done.stdout.splitlines()[-1])["peak_mib"]

    with ThreadPoolExecutor(max_workers=2) as pool:
        return dict(zip(args.arms, pool.map(measure, args.arms), strict=True))


def time_preparation(
    data: str, path: Path, workload: Workload, args: argparse.Namespace, folder: str
) -> dict[str, Any]:
    """Seconds to encode a whole data set under the JEPA objective, and to plan the packed rows of all its batches."""
    chats, _ = read_chats(data, path, args.prepare_rows)
    options = JEPAConfig(max_length=MAX_LENGTH, output_dir=folder, use_cpu=True, **method_of("jepa", workload))
    start = time.perf_counter()
    store, _ = encode([{"messages": chat} for chat in chats], workload.tokenizer, options)
    encoded = time.perf_counter()
    lengths = [len(build_forest(example, range(options.predictors or 0))) for example in store]
    for first in range(0, len(lengths), args.batch_size):
        plan_rows(lengths[first : first + args.batch_size])
    planned = time.perf_counter()
    return {"rows": len(chats), "encode_seconds": encoded - start, "plan_seconds": planned - encoded}


def summarise(work: dict[str, list[Work]], memory: dict[str, float]) -> dict[str, Any]:
    """Figures of every arm, and all ratios of the closing lines."""
    speed = {name: [done.examples / done.seconds for done in rounds] for name, rounds in work.items()}
    arms = {}
    for name, rounds in work.items():
        arms[name] = {
            "examples_per_second": spread(speed[name]),
            "tokens_per_second": spread([done.tokens / done.seconds for done in rounds]),
            "seconds_per_step": spread([done.seconds / done.steps for done in rounds]),
            "examples_per_step": rounds[0].examples // rounds[0].steps,
            "positions_per_example": sum(d.positions for d in rounds) / sum(d.examples for d in rounds),
            "peak_mib": memory.get(name),
            "rounds": speed[name],
        }
        for base in ("regular", "doubled"):
            arms[name][f"ratio_to_{base}"] = ratio(speed[name], speed[base]) if base in speed else None
    lines: dict[str, Any] = {}
    for label, above, below in _SPEED_LINES:
        if above in speed and below in speed:
            lines[label] = ratio(speed[above], speed[below])
    for label, above, below in _MEMORY_LINES:
        if above in memory and below in memory:
            lines[label] = memory[above] / memory[below]
    return {"arms": arms, "ratios": lines}


def print_result(data: str, result: dict[str, Any]) -> None:
    """One data set: the table, then the closing lines."""
    header = ["arm", "examples/s", "tokens/s", "s/step", "positions/example", "peak MiB", "to regular", "to doubled"]
    rows = []
    for name, figures in result["arms"].items():
        peak = figures["peak_mib"]
        ratios = [figures["ratio_to_regular"], figures["ratio_to_doubled"]]
        rows.append(
            [
                name,
                f"{figures['examples_per_second']['median']:.1f}",
                f"{figures['tokens_per_second']['median']:.0f}",
                f"{figures['seconds_per_step']['median']:.3f}",
                f"{figures['positions_per_example']:.0f}",
                "-" if peak is None else f"{peak:.0f}",
                *("-" if value is None else f"{value['median']:.2f}x" for value in ratios),
            ]
        )
    print(f"\n{data}: {json.dumps(OBJECTIVES[data])}")
    print(
        f"{result['rows']} rows of {result['origin']}; {result['batch_size']} a step, {result['steps']} steps a round"
    )
    print(f"{result['parameters']:,} parameters, {result['vocabulary']} tokens in the vocabulary")
    print(table(header, rows))
    for label, value in result["ratios"].items():
        if isinstance(value, dict):
            print(f"{label}: {value['median']:.2f}x ({value['min']:.2f}..{value['max']:.2f})")
        else:
            print(f"{label}: {value:.2f}x")
    if result.get("preparation"):
        ready = result["preparation"]
        print(
            f"data preparation, {ready['rows']} rows: {ready['encode_seconds']:.2f} s to encode, "
            f"{ready['plan_seconds']:.2f} s to plan the rows of all batches"
        )


def profile(arm: Arm) -> None:
    """Print the operators of an arm's steps by their own CPU time."""
    arm.run(1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        arm.run()
    print(recorded.key_averages().table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=50))


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """What the figures depend on."""
    try:
        trl = version("trl")
    except PackageNotFoundError:
        trl = None
    names = ("model", "template", "batch_size", "rounds", "threads")
    return {
        **{name: getattr(args, name) for name in names},
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "trl": trl,
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "device": torch.cuda.get_device_name() if args.gpu else "cpu",
        "dtype": "bfloat16 by autocast" if args.gpu else "float32",
    }


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark."""
    args = parse_args(argv)
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers|trl")
    results: dict[str, Any] = {"settings": settings(args), "data": {}}
    paths = {name: getattr(args, name) for name in OBJECTIVES}
    tokenizer = make_tokenizer(paths, args.rows, args.model, args.template)
    with tempfile.TemporaryDirectory() as folder:
        for data in args.data:
            path = getattr(args, data)
            workload = load_workload(data, path, args.rows, args.batch_size, args.model, tokenizer, args.gpu)

            steps = args.steps or STEPS[data]

            def build(name: str, workload: Workload = workload, steps: int = steps) -> Arm:
                return build_arm(name, workload, folder, args.batch_size, steps)

            if args.memory:
                arm = build(args.memory)
                print(json.dumps({"peak_mib": peak_mib(lambda arm=arm: arm.run(_MEMORY_STEPS))}))
                continue
            if args.profile:
                profile(build(args.profile))
                continue
            arms = [build(name) for name in args.arms]
            work = measure_rounds(arms, args.rounds)
            parameters = sum(weight.numel() for weight in arms[0].trainer.model.parameters())
            del arms
            if args.gpu:  # where activations and gradients are all that is not held between the rounds
                memory = {name: max(done.peak_mib or 0.0 for done in rounds) for name, rounds in work.items()}
            else:
                memory = {} if args.skip_memory else measure_memory(data, args)
            result = {"origin": workload.origin, "rows": len(workload.chats), "batch_size": args.batch_size}
            result |= {"steps": steps, "vocabulary": len(workload.tokenizer)}
            result |= {"parameters": parameters, **summarise(work, memory)}
            if args.prepare_rows:
                result["preparation"] = time_preparation(data, path, workload, args, folder)
            results["data"][data] = result
            print_result(data, result)
    if args.memory or args.profile:
        return
    print("\n" + ", ".join(f"{key} {value}" for key, value in results["settings"].items()))
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
