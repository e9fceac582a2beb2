"""How many rows a second become examples on one core, where the time goes, and how long a cached start takes.

GSM8K under `step_jepa` with every pair of steps, counted in processor time on one thread. The tokenizer is a byte-level BPE
with Llama 3's split pattern, trained on the rows, or one that is named. Rounds take turns with the tokenizer library by
itself on the same texts, which bounds what encoding can reach.

    python benchmarks/encode_speed.py
    python benchmarks/encode_speed.py --tokenizer meta-llama/Llama-3.2-1B-Instruct --step_splitter sentence --rounds 9
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

for name, value in (("TOKENIZERS_PARALLELISM", "false"), ("RAYON_NUM_THREADS", "1"), ("OMP_NUM_THREADS", "1")):
    os.environ[name] = value

import torch  # noqa: E402
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402
from transformers import AutoTokenizer, PreTrainedTokenizerFast  # noqa: E402
from workload import TEMPLATES  # noqa: E402

from stepjepa.data.chat import ChatRenderer  # noqa: E402
from stepjepa.data.dataset import cache_key, load_cached, save_cached  # noqa: E402
from stepjepa.data.encode import EncodeOptions, encode_dataset  # noqa: E402
from stepjepa.data.sources import RowSource, row_to_messages  # noqa: E402
from stepjepa.data.steps import StepRules, make_splitter  # noqa: E402
from stepjepa.data.tasks import generate_rows  # noqa: E402
from stepjepa.data.tokens import encode_texts  # noqa: E402
from stepjepa.objectives.base import objective_of  # noqa: E402
from stepjepa.training.options import JEPAOptions  # noqa: E402

_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
_CHUNK = 1000
# Llama 3's tokenizer configuration.
_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--gsm8k", type=Path, default=_DATA / "gsm8k_train.jsonl", help="questions/answers, JSONL")
    parser.add_argument("--rows", type=int, default=7473)
    parser.add_argument("--tokenizer", help="folder or name of a tokenizer with a chat template")
    parser.add_argument("--step_splitter", default="lines")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures here")
    return parser.parse_args()


def write_rows(file: Path, given: Path, count: int) -> str:
    """Write `count` rows, of `given` or generated ones; returns what they are."""
    if given.is_file():
        lines = given.read_text(encoding="utf-8").splitlines()[:count]
        what = str(given)
    else:
        lines = [json.dumps(row) for row in generate_rows(count)]
        what = f"generated rows ({given} is absent)"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return what


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE that splits text as Llama 3 does, with its chat markup."""
    markers, template = TEMPLATES["llama3"]
    special = ["<|begin|>", "<|end|>", *markers]
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(_PATTERN), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=32_768, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=special[0], eos_token=special[1], chat_template=template
    )


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Processor seconds of one call, and what it returns."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def in_chunks(work: Callable[[list[str]], Any], texts: list[str]) -> Callable[[], None]:
    """`work` on all texts, a chunk at a time, as encoding does it."""

    def run() -> None:
        for start in range(0, len(texts), _CHUNK):
            work(texts[start : start + _CHUNK])

    return run


def main() -> None:
    """Measure and print."""
    args = parse_args()
    torch.set_num_threads(1)
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        file, cache = Path(name) / "rows.jsonl", Path(name) / "cache"
        what = write_rows(file, args.gsm8k, args.rows)
        chats = [row_to_messages(row) for _, row in RowSource(str(file))]
        if args.tokenizer:
            tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
        else:
            tokenizer = train_tokenizer([message["content"] for chat in chats for message in chat])
        options = EncodeOptions(
            objective=objective_of(JEPAOptions(objective="step_jepa", step_pairs="all", predictors=0)),
            rules=StepRules(make_splitter(args.step_splitter)),
        )
        renderer = ChatRenderer(tokenizer)

        def read() -> list[Any]:
            return [row_to_messages(row) for _, row in RowSource(str(file))]

        def cached_start() -> int:
            rows = RowSource(str(file))
            found = load_cached(cache, cache_key(rows, tokenizer, options) or "")
            assert found is not None
            return sum(len(example.trunk) for example in found[0])

        encode_dataset(str(file), tokenizer, renderer, options)  # warms caches up
        for _ in range(args.rounds):
            seconds, (store, report) = timed(lambda: encode_dataset(str(file), tokenizer, renderer, options))
            parts = {"encode_dataset": seconds, "reading rows": timed(read)[0]}
            parts["chat template"], texts = timed(lambda: [renderer.render(chat).text for chat in chats])
            parts["tokens and spans"], _ = timed(in_chunks(lambda some: encode_texts(tokenizer, some), texts))
            if getattr(tokenizer, "is_fast", False):
                parts["the library alone"], _ = timed(in_chunks(tokenizer.backend_tokenizer.encode_batch_fast, texts))
            key = cache_key(RowSource(str(file)), tokenizer, options) or ""
            save_cached(cache, key, store, report)
            parts["cached start"], tokens = timed(cached_start)
            assert tokens == report.tokens
            for part, value in parts.items():
                times.setdefault(part, []).append(value)
    rows = report.rows_kept
    print(f"{rows:,} rows of {what}: {report.tokens / rows:.0f} tokens and {report.pairs / rows:.1f} pairs a row")
    for part, values in times.items():
        middle, low, high = statistics.median(values), min(values), max(values)
        speed = f"{rows / middle:>9,.0f} rows/s ({rows / high:,.0f} to {rows / low:,.0f})"
        print(f"{part:<18}{middle:>7.2f} s {speed}")
    if args.json:
        args.json.write_text(json.dumps({"rows": rows, "source": what, "seconds": times}, indent=2) + "\n")


if __name__ == "__main__":
    main()
