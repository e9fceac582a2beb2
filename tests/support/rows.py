"""Made-up rows with steps: chats for trainer tests, and raw ones of GSM8K's form; and JSON lines."""

import json
import random
from pathlib import Path
from typing import Any


def step_rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Chats whose answers have one to four steps separated by blank lines."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        total = rng.randint(2, 20)
        question, steps = f"Start with {total}.", [f"We have {total}."]
        for _ in range(rng.randint(0, 3)):
            more = rng.randint(1, 9)
            question += f" Add {more}."
            steps.append(f"{total} + {more} = {total + more}.")
            total += more
        steps[-1] += f" The answer is {total}."
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": "\n\n".join(steps)}]
        rows.append({"messages": messages})
    return rows


def gsm8k(index: int, question: str | None = None, steps: str | None = None) -> dict[str, str]:
    steps = steps or f"He has {index} of them.\nWith one more {index}+1=<<{index}+1={index + 1}>>{index + 1}.\n"
    return {"question": question or f"What is {index} and 1?", "answer": f"{steps}#### {index + 1}"}


def lines(path):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").split("\n")[:-1]]


def write(path, rows):
    """JSON lines; a row that is text stands in the file as it is."""
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)
