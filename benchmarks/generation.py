"""Tokens a second of greedy answers: one call of `generate` a batch, and continuous batching.

    python benchmarks/generation.py --model .venv/models/SmolLM2-135M-Instruct --questions gsm8k_test.jsonl

`one call` is this library's `generate_batch`, which computes every row of a batch until its longest answer ends.
`continuous` is transformers' `generate_batch` with its defaults. Prompts are sorted by length. On CPU the seconds are
processor time, on a GPU elapsed time.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from measure import spread, table
from transformers import GenerationConfig

from stepjepa.data.chat import row_to_messages
from stepjepa.data.sources import RowSource
from stepjepa.data.tokens import Prompter
from stepjepa.generation import local
from stepjepa.generation.options import BATCH_SIZE
from stepjepa.modeling.load import load_model, load_tokenizer

Answers = Callable[[Any, Prompter, list[list[int]], argparse.Namespace], list[list[int]]]


def in_one_call(model: Any, prompter: Prompter, prompts: list[list[int]], args: argparse.Namespace) -> list[list[int]]:
    stops, answers = stop_ids(model, prompter), []
    for begin in range(0, len(prompts), args.batch_size):
        batch = prompts[begin : begin + args.batch_size]
        answers += local.generate_batch(model, batch, args.max_new_tokens, stops)
    return without(stops, answers)


def continuously(model: Any, prompter: Prompter, prompts: list[list[int]], args: argparse.Namespace) -> list[list[int]]:
    stops = stop_ids(model, prompter)
    config = GenerationConfig(
        max_new_tokens=args.max_new_tokens, eos_token_id=stops, pad_token_id=stops[0], do_sample=False
    )
    answers = model.generate_batch(inputs=prompts, generation_config=config)
    tokens = [answers[key].generated_tokens for key in sorted(answers, key=lambda key: int(key.rpartition("_")[2]))]
    return without(stops, tokens)


ARMS: dict[str, Answers] = {"one call": in_one_call, "continuous": continuously}


def without(stops: list[int], answers: list[list[int]]) -> list[list[int]]:
    return [[token for token in answer if token not in stops] for answer in answers]


def stop_ids(model: Any, prompter: Prompter) -> list[int]:
    return prompter.stop_ids(model.generation_config.eos_token_id)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a folder or Hub id, or a preset with random weights")
    parser.add_argument("--questions", required=True, help="JSONL of chats, or of questions and answers")
    parser.add_argument("--count", type=int, default=32, help="of questions")
    parser.add_argument("--batch_size", type=int, default=BATCH_SIZE)
    parser.add_argument("--max_new_tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=1, help="of all arms, one after the other")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(words)

    torch.set_num_threads(args.threads)
    chats = [row_to_messages(row)[:-1] for _, row in islice(RowSource(args.questions), args.count)]
    tokenizer = load_tokenizer(args.model, [message["content"] for chat in chats for message in chat])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = load_model(args.model, tokenizer).to(device).eval()
    prompter = Prompter(tokenizer)
    prompts = sorted((prompter.ids(chat) for chat in chats), key=len, reverse=True)
    clock = time.process_time if device == "cpu" else time.perf_counter

    speeds: dict[str, list[float]] = {name: [] for name in args.arms}
    answers: dict[str, list[list[int]]] = {}
    for _ in range(args.rounds):
        for name in args.arms:
            begin = clock()
            answers[name] = ARMS[name](model, prompter, prompts, args)
            speeds[name].append(sum(map(len, answers[name])) / (clock() - begin))
    first = answers[args.arms[0]]
    lengths = sorted(map(len, first))
    result: dict[str, Any] = {"lengths": spread(lengths), "arms": {}}
    for name, values in speeds.items():
        equal = sum(a == b for a, b in zip(answers[name], first, strict=True))
        result["arms"][name] = {"tokens_per_second": spread(values), "equal_answers": equal}
    rows = [
        [name, *(f"{arm['tokens_per_second'][key]:.1f}" for key in ("median", "min", "max")), str(arm["equal_answers"])]
        for name, arm in result["arms"].items()
    ]
    print(f"{len(prompts)} questions, batches of {args.batch_size}, at most {args.max_new_tokens} new tokens; {device}")
    print("tokens an answer: {min}, median {median}, {max}".format(**result["lengths"]))
    print(table(["arm", "tok/s", "min", "max", f"equal to {args.arms[0]}"], rows))
    if args.json:
        args.json.write_text(
            json.dumps({"settings": {**vars(args), "json": str(args.json)}, **result}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
