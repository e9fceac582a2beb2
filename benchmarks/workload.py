"""What every arm of a benchmark trains on: rows, the tokenizer trained on them, and the objective of each data set."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepjepa.data.sources import row_to_messages
from stepjepa.data.tasks import generate_rows
from stepjepa.modeling.load import CHAT_TEMPLATE, PRESETS, ROLE_MARKERS, train_tokenizer

Messages = list[dict[str, str]]

# The JEPA objective that each data set is measured with: options of `JEPAConfig`.
OBJECTIVES: dict[str, dict[str, Any]] = {
    "nl_rx": {"objective": "llm_jepa", "predictors": 2, "lbd": 0.1, "jepa_loss": "cosine"},
    "gsm8k": {
        "objective": "step_jepa",
        "step_pairs": "first",
        "step_splitter": "lines",
        "predictors": 2,
        "lbd": 0.1,
        "jepa_loss": "cosine",
    },
}
MAX_LENGTH = 1024

# Chat templates: markers, and Jinja. `llama3` writes around a message what Llama 3's does: header, blank line, end of turn;
# `compact` is the presets' own, with two tokens a message.
TEMPLATES = {
    "llama3": (
        ("<|start_header_id|>", "<|end_header_id|>"),
        "{% set head = '<|start_header_id|>' %}{% set neck = '<|end_header_id|>\n\n' %}{{ bos_token }}"
        "{% for message in messages %}{{ head + message['role'] + neck + message['content'] + '<|end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ head + 'assistant' + neck }}{% endif %}",
    ),
    "compact": (ROLE_MARKERS, CHAT_TEMPLATE),
}


@dataclass(frozen=True)
class Workload:
    """One data set, ready for all arms.

    Attributes:
        name: key of `OBJECTIVES`.
        origin: where the rows come from, in words.
        chats: the rows that are trained on, in the order in which every arm sees them.
        tokenizer: trained on the rows of all data sets; its chat template is the one that all arms use.
        model: preset name, or a folder with a `config.json`; the weights are random.
        gpu: it is trained on a GPU.
        max_length: of a chat, in tokens.
        dtype: of the weights; on a GPU those in float32 compute in bfloat16 by autocast.
        attention: asked for by name; None for the model's usual one.
        lora: an adapter is trained, and the weights are frozen.
    """

    name: str
    origin: str
    chats: list[Messages]
    tokenizer: Any
    model: str
    gpu: bool = False
    max_length: int = MAX_LENGTH
    dtype: str = "float32"
    attention: str | None = None
    lora: bool = False


def long_chats(chats: list[Messages], count: int, longest: int) -> list[Messages]:
    """`count` chats of a quarter of `longest` tokens to about all of them: a question, and the answers of many in turn."""
    characters = 2 * longest  # of a tokenizer of 2,048 entries, a little below its average
    answers, made = itertools.cycle(chats), []
    for number in range(count):
        enough = characters // 4 + (characters - characters // 4) * (number % 4) // 3
        lines = [next(answers)[-1]["content"]]
        while sum(map(len, lines)) < enough:
            lines.append(next(answers)[-1]["content"])
        made.append([*chats[number % len(chats)][:-1], {"role": "assistant", "content": "\n".join(lines)}])
    return made


def read_chats(name: str, path: Path, count: int) -> tuple[list[Messages], str]:
    """The first `count` chats of a JSONL file, or of the built-in generator where the file is absent.

    Returns:
        The chats, and where they come from in words.
    """
    if path.is_file():
        with open(path, encoding="utf-8") as file:
            rows = [json.loads(line) for line in itertools.islice(file, count)]
        return [row_to_messages(row) for row in rows], path.name
    chats = [row["messages"] for row in generate_rows(count)]
    return chats, f"generated rows ({path.name} is absent, so these figures are not those of {name})"


def make_tokenizer(paths: dict[str, Path], rows: int, model: str, template: str) -> Any:
    """One tokenizer for all data sets, trained on the rows of each."""
    markers, jinja = TEMPLATES[template]
    chats = [chat for name, path in paths.items() for chat in read_chats(name, path, rows)[0]]
    texts = [message["content"] for chat in chats for message in chat]
    # The names of the roles are as frequent as the rows, and a tokenizer knows them.
    roles = [f"{role}\n\n" for role in ("system", "user", "assistant")] * len(chats)
    return train_tokenizer([*texts, *roles], PRESETS[model if model in PRESETS else "mini"].vocabulary, markers, jinja)


def load_workload(
    name: str, path: Path, rows: int, batch_size: int, model: str, tokenizer: Any, gpu: bool = False
) -> Workload:
    """Rows of one data set; whole batches only, so that no arm meets a short one."""
    chats, origin = read_chats(name, path, rows)
    chats = chats[: len(chats) // batch_size * batch_size]
    if not chats:
        raise SystemExit(f"{name}: {rows} rows do not fill one batch of {batch_size}; raise --rows")
    return Workload(name, origin, chats, tokenizer, model, gpu)


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
