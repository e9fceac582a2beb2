"""How near `stepjepa check` with token counts comes to the tokenizer alone, in as many processes.

GSM8K's rows over and over, numbered, so that no question repeats. The tokenizer alone writes each chat by its template and
tokenises it (`apply_chat_template` in batches of 1,000). Times are of the rows that a long file has more than a short one,
as starting does not count; both take turns. What this script does not know goes to `stepjepa check`.

    python benchmarks/check_speed.py --tokenizer meta-llama/Llama-3.2-1B-Instruct
    python benchmarks/check_speed.py --rounds 5 --objective step_jepa --step_splitter lines
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from encode_speed import train_tokenizer, write_rows  # which leaves every process one thread
from transformers import AutoTokenizer

from stepjepa.data.sources import RowSource, row_to_messages
from stepjepa.utils.parallel import mapped

_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
_BATCH = 1000


def tokens(tokenizer: Any, chats: list[Any]) -> int:
    """How many tokens the chats have."""
    return sum(map(len, tokenizer.apply_chat_template(chats)["input_ids"]))


def alone(file: Path, tokenizer: Any, processes: int) -> float:
    """Seconds of the tokenizer alone, reading the rows included."""
    start = time.perf_counter()
    with open(file, encoding="utf-8") as rows:
        chats = (json.loads(line)["messages"] for line in rows)
        batches = iter(lambda: list(islice(chats, _BATCH)), [])
        assert sum(mapped(partial(tokens, tokenizer), batches, processes, "num_proc"))
    return time.perf_counter() - start


def check(file: Path, folder: str, processes: int, more: list[str]) -> float:
    """Seconds of the command."""
    words = ["check", str(file), "--model_name", folder, "--num_proc", str(processes)]
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "stepjepa", *words, *more], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--gsm8k", type=Path, default=_DATA / "gsm8k_train.jsonl", help="questions/answers, JSONL")
    parser.add_argument("--tokenizer", help="folder or name of a tokenizer with a chat template")
    parser.add_argument("--rows", type=int, nargs=2, default=(10_000, 40_000), help="of the two files")
    parser.add_argument("--num_proc", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    args, more = parser.parse_known_args()
    short, long = args.rows
    with tempfile.TemporaryDirectory() as name:
        what = write_rows(Path(name, "given.jsonl"), args.gsm8k, long)
        chats = [row_to_messages(row) for _, row in RowSource(str(Path(name, "given.jsonl")))]
        tokenizer = AutoTokenizer.from_pretrained(args.tokenizer) if args.tokenizer else None
        tokenizer = tokenizer or train_tokenizer([message["content"] for chat in chats for message in chat])
        tokenizer.save_pretrained(Path(name, "tokenizer"))
        files = [Path(name, f"{count}.jsonl") for count in (short, long)]
        for file, count in zip(files, (short, long), strict=True):
            with open(file, "w", encoding="utf-8") as out:
                for number in range(count):
                    first, *rest = chats[number % len(chats)]
                    numbered = [{**first, "content": f"{number}. {first['content']}"}, *rest]
                    out.write(json.dumps({"messages": numbered}) + "\n")
        how = f"{args.num_proc} processes, {' '.join(more) or 'defaults'}"
        print(f"{long - short:,} rows beyond {short:,} of {what}, {how}")
        for _ in range(args.rounds):
            folder, rows = str(Path(name, "tokenizer")), long - short
            own = [alone(file, tokenizer, args.num_proc) for file in files]
            ours = [check(file, folder, args.num_proc, more) for file in files]
            bare, seconds = own[1] - own[0], ours[1] - ours[0]
            speeds = f"the tokenizer alone {rows / bare:,.0f} rows/s, stepjepa check {rows / seconds:,.0f}"
            print(f"{speeds}: {100 * bare / seconds:.0f} %", flush=True)


if __name__ == "__main__":
    main()
