"""One GPU: training steps of this library next to what a user would pick instead, and answers.

The model is the configuration of Llama 3.2 1B with random weights; a step is 64 chats of GSM8K, or 4 long ones of 2,048 to
8,192 tokens. Every arm runs in a process of its own, within a limit of time; one that fails is a line of the table. The
table and the JSON file are written again after every arm. All arms train the same chats in the same order.

    python benchmarks/gpu.py --json gpu.json --table gpu.md
    python benchmarks/gpu.py --preset tiny --device cpu --arm_seconds 1
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import tempfile
import time
import traceback
import warnings
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from arms import Arm, build_arm, library_arm
from measure import ratio, spread, table
from workload import OBJECTIVES, Workload, load_workload, long_chats, make_tokenizer, read_chats

from stepjepa import JEPAConfig
from stepjepa.data.tokens import Prompter
from stepjepa.generation.local import LocalGenerator
from stepjepa.generation.output import Request
from stepjepa.modeling.flops import card_peak
from stepjepa.modeling.load import load_model
from stepjepa.training.datasets import encode

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
REGULAR: dict[str, Any] = {"objective": "regular"}
STEP = OBJECTIVES["gsm8k"]
STANDALONE = {"objective": "llm_jepa", "views": "standalone", "predictors": 2, "lbd": 0.1, "jepa_loss": "cosine"}
TRL = "trl_best" if find_spec("trl") else "transformers"


@dataclass(frozen=True)
class Setting:
    """What an arm trains: `other`, an arm of `arms.build_arm`, or this library with the options `method`; and how the model
    is held, as changes to the `Workload`."""

    method: dict[str, Any] = field(default_factory=dict)
    other: str = ""
    held: dict[str, Any] = field(default_factory=dict)


_BF16, _LORA, _SDPA = {"dtype": "bfloat16"}, {"lora": True}, {"attention": "sdpa"}
_COMPILED, _CHECKPOINTED = {"torch_compile": True}, {"gradient_checkpointing": True}
# What matters most comes first: the time may run out.
SETTINGS: dict[str, Setting] = {
    "regular": Setting(REGULAR),
    TRL: Setting(other=TRL),
    "step_jepa": Setting(STEP),
    **({"trl_flat": Setting(other="trl_flat")} if TRL != "transformers" else {}),
    "llm_jepa": Setting(STANDALONE),
    "doubled": Setting(other="doubled"),
    "regular, sdpa": Setting(REGULAR, held=_SDPA),
    "step_jepa, sdpa": Setting(STEP, held=_SDPA),
    "answers": Setting(other="answers", held=_BF16),
    "regular, LoRA": Setting(REGULAR, held=_LORA),
    f"{TRL}, LoRA": Setting(other=TRL, held=_LORA),
    "step_jepa, LoRA": Setting(STEP, held=_LORA),
    "regular, bf16 weights": Setting(REGULAR, held=_BF16),
    f"{TRL}, bf16 weights": Setting(other=TRL, held=_BF16),
    "step_jepa, bf16 weights": Setting(STEP, held=_BF16),
    "step_jepa, checkpointed": Setting({**STEP, **_CHECKPOINTED}),
    "regular, compiled": Setting({**REGULAR, **_COMPILED}),
    "step_jepa, compiled": Setting({**STEP, **_COMPILED}),
}
# By data set: the arms, and examples of a step, on a GPU and in a rehearsal. The published row takes 512 tokens.
LONG = ("regular", TRL, "step_jepa", "trl_flat", "step_jepa, sdpa", "regular, LoRA", "step_jepa, LoRA")
RUNS = {"gsm8k": (tuple(SETTINGS), 64, 4), "long": (tuple(one for one in LONG if one in SETTINGS), 4, 2)}
# (label, arm above, arms below, of which the fastest counts)
LINES = (
    ("regular / the fastest of TRL", "regular", (TRL, "trl_flat")),
    ("step_jepa / regular", "step_jepa", ("regular",)),
    ("step_jepa / doubled", "step_jepa", ("doubled",)),
)


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--preset", default="llama", help="llama (3.2 1B), or a preset of the library, as tiny")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu is a rehearsal of small batches")
    parser.add_argument("--data", nargs="+", choices=sorted(RUNS), default=list(RUNS))
    parser.add_argument("--arms", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--gsm8k", type=Path, default=_DATA / "gsm8k_train.jsonl", help="questions/answers, JSONL")
    parser.add_argument("--minutes", type=float, default=9.5, help="no arm begins after so many minutes")
    parser.add_argument("--arm_seconds", type=float, default=6, help="seconds of timed steps of an arm, at least")
    parser.add_argument("--limit", type=float, default=120, help="an arm is stopped after so many seconds")
    parser.add_argument("--json", type=Path, help="write the results here, after every arm")
    parser.add_argument("--table", type=Path, help="write the table here, likewise")
    return parser.parse_args()


def workload_of(data: str, model: str, args: argparse.Namespace) -> tuple[Workload, int]:
    """The chats of a data set with a tokenizer trained on them, and how many a step takes."""
    gpu = args.device == "cuda"
    size = RUNS[data][1 if gpu else 2]
    rows = 16 * size
    tokenizer = make_tokenizer({"gsm8k": args.gsm8k}, 512, args.preset, "llama3")
    workload = load_workload("gsm8k", args.gsm8k, rows, size, model, tokenizer, gpu)
    if data == "long":
        chats, _ = read_chats("gsm8k", args.gsm8k, 64 * rows)
        longest = 8192 if gpu else 512
        workload = replace(workload, chats=long_chats(chats, rows, longest), max_length=longest)
    return workload, size


def needed_flops(model: torch.nn.Module, lora: bool, workload: Workload) -> float:
    """FLOPs a token of the chats that plain training needs: products with every matrix, those of the head at labelled tokens
    alone. Attention, copies, predictors and padding are left out, so MFU is comparable over the arms."""
    options = JEPAConfig(output_dir=tempfile.gettempdir(), use_cpu=True, max_length=workload.max_length, **REGULAR)
    store, _ = encode([{"messages": chat} for chat in workload.chats], workload.tokenizer, options)
    tokens = sum(len(example.trunk) for example in store)
    labels = sum(stop - start for example in store for start, stop in example.labels)
    inner: Any = model
    head = inner.get_output_embeddings().weight.numel()
    matrices = {
        id(part.weight): part.weight.numel()
        for name, part in model.named_modules()
        if isinstance(part, torch.nn.Linear) and "lora_" not in name
    }
    products = 4 if lora else 6  # frozen matrices have no gradient
    return products * (sum(matrices.values()) - head) + products * head * labels / tokens


def measure(name: str, data: str, model: str, args: argparse.Namespace) -> dict[str, Any]:
    """The figures of an arm."""
    workload, size = workload_of(data, model, args)
    setting = SETTINGS[name]
    workload = replace(workload, **setting.held)
    if setting.other == "answers":
        return measure_answers(workload, args)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        if setting.other:
            arm = build_arm(setting.other, workload, folder, size, steps=2)
        else:
            arm = library_arm(name, setting.method, workload, folder, size, steps=2)
        built = time.perf_counter()
        arm.run(1)
        first = time.perf_counter() - built
        arm.run(3)
        return {"built_seconds": built - begin, "first_step_seconds": first, **timed(arm, workload, args)}


def timed(arm: Arm, workload: Workload, args: argparse.Namespace) -> dict[str, Any]:
    """The figures of rounds of steps, three at least."""
    gpu = args.device == "cuda"
    begin, rounds = time.perf_counter(), []
    while len(rounds) < 3 or time.perf_counter() - begin < args.arm_seconds:
        rounds.append(arm.run())
    speeds = [done.tokens / done.seconds for done in rounds]
    model: Any = arm.trainer.accelerator.unwrap_model(arm.trainer.model)
    peak = card_peak(torch.cuda.get_device_name()) if gpu else None
    flops = needed_flops(model, workload.lora, workload)
    config = model.config.get_text_config()
    return {
        "attention": config._attn_implementation.removeprefix("stepjepa_"),
        "tokens_per_second": spread(speeds),
        "rounds": speeds[:3],
        "mfu": flops * statistics.median(speeds) / peak if peak else None,
        "positions_per_token": sum(done.positions for done in rounds) / sum(done.tokens for done in rounds),
        "tokens_per_step": sum(done.tokens for done in rounds) / sum(done.steps for done in rounds),
        "step_gib": max(done.peak_mib or 0 for done in rounds) / 2**10 if gpu else None,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if gpu else None,
    }


def measure_answers(workload: Workload, args: argparse.Namespace) -> dict[str, Any]:
    """Tokens a second of answers to the questions, a batch of 64; random weights seldom end an answer."""
    gpu = args.device == "cuda"
    batch, tokens = (64, 128) if gpu else (8, 8)
    with torch.device(args.device):
        model = load_model(workload.model, workload.tokenizer, pretrain=True, dtype=workload.dtype)
    generator = LocalGenerator(model, Prompter(workload.tokenizer), tokens, batch_size=batch)
    questions = [Request(row, chat[:-1], 0.0, row) for row, chat in enumerate(workload.chats[:batch])]
    speeds = []
    for _ in range(4):
        begin = time.perf_counter()
        written = sum(reply.new_tokens for replies in generator.answer(questions, ()) for reply in replies)
        speeds.append(written / (time.perf_counter() - begin))
    peak = torch.cuda.max_memory_allocated() / 2**30 if gpu else None
    return {"attention": "sdpa", "tokens_per_second": spread(speeds[1:]), "rounds": speeds[1:], "peak_gib": peak}


def _child(file: str, *arguments: Any) -> None:
    transformers.logging.set_verbosity_error()
    warnings.filterwarnings("ignore", category=FutureWarning)
    try:
        figures = measure(*arguments)
    except Exception as error:
        traceback.print_exc()
        figures = {"fault": f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160] if str(error) else ''}"}
    Path(file).write_text(json.dumps(figures), encoding="utf-8")


def in_own_process(limit: float, *arguments: Any) -> dict[str, Any]:
    """What `measure` gives in a process of its own, or its fault. This process never touches the GPU, so it can fork."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "figures.json")
        process = multiprocessing.get_context("fork").Process(target=_child, args=(str(file), *arguments))
        process.start()
        process.join(limit)
        if process.is_alive():
            process.terminate()
            process.join(10)
            return {"fault": f"stopped after {limit:.0f} s"}
        if not file.is_file():
            return {"fault": f"ended with exit code {process.exitcode}"}
        return json.loads(file.read_text(encoding="utf-8"))


def text_of(results: dict[str, Any]) -> str:
    """The tables of all data sets, the ratios, and what they depend on."""
    header = ["arm", "attention", "tok/s", "rounds", "MFU", "positions/token", "step GiB", "peak GiB", "first step s"]
    parts = []
    for data, arms in results["data"].items():
        rows = [[name, *_cells(figures)] for name, figures in arms.items()]
        parts.append(f"{data}\n{table(header, rows)}")
        parts += [f"{name}: {figures['fault']}" for name, figures in arms.items() if "fault" in figures]
        for label, above, below in LINES:
            known = [arms[one] for one in (above, *below) if "rounds" in arms.get(one, {})]
            if len(known) > 1 and "rounds" in arms.get(above, {}):
                best = max(known[1:], key=lambda figures: figures["tokens_per_second"]["median"])
                found = ratio(known[0]["rounds"], best["rounds"])
                parts.append("{}: {median:.2f}x ({min:.2f}..{max:.2f})".format(label, **found))
    parts.append(", ".join(f"{key} {value}" for key, value in results["settings"].items()))
    return "\n".join(parts) + "\n"


def _cells(figures: dict[str, Any]) -> list[str]:
    if "fault" in figures:
        return ["failed", *["-"] * 7]
    speed = figures["tokens_per_second"]
    forms = {
        "mfu": ".1%",
        "positions_per_token": ".2f",
        "step_gib": ".1f",
        "peak_gib": ".1f",
        "first_step_seconds": ".1f",
    }
    values = {key: figures.get(key) for key in forms}
    numbers = ["-" if value is None else f"{value:{forms[key]}}" for key, value in values.items()]
    return [figures["attention"], f"{speed['median']:,.0f}", f"{speed['min']:,.0f}..{speed['max']:,.0f}", *numbers]


def device_name() -> str:
    """The GPU's name, asked for in a process of its own."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(torch.cuda.get_device_name)


def main() -> None:
    """Measure, and write after every arm."""
    args = parse_args()
    begin = time.perf_counter()
    packages = ("torch", "transformers", *(("trl",) if find_spec("trl") else ()))
    settings = {"preset": args.preset, "device": device_name() if args.device == "cuda" else platform.machine()}
    settings |= {name: version(name) for name in packages}
    settings["TRL"] = "SFTTrainer" if find_spec("trl") else "not installed: transformers' Trainer, the same batches"
    results: dict[str, Any] = {"settings": settings, "data": {}}
    with tempfile.TemporaryDirectory() as folder:
        model = args.preset
        if model == "llama":
            model = folder
            Path(folder, "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
        for data in args.data:
            arms = results["data"].setdefault(data, {})
            for name in RUNS[data][0]:
                if name not in args.arms:
                    continue
                spent = time.perf_counter() - begin
                arms[name] = {"fault": f"not begun: {spent / 60:.1f} minutes are over"}
                if spent < 60 * args.minutes:
                    arms[name] = in_own_process(args.limit, name, data, model, args)
                if args.json:
                    args.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
                if args.table:
                    args.table.write_text(text_of(results), encoding="utf-8")
                print(f"{data}, {name}: {' '.join(_cells(arms[name]))}", flush=True)
    print(f"\n{text_of(results)}")


if __name__ == "__main__":
    main()
