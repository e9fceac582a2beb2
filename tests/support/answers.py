"""Chats of little sums with their right answers, to train on and to ask for, and their files."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from types import SimpleNamespace

from support.rows import step_rows

SYSTEM = "Add up."
TRAIN = step_rows(64)
TEST = [
    {**row, "ground_truth": row["messages"][1]["content"].rpartition("The answer is ")[2].rstrip(".")}
    for row in step_rows(12, seed=1)
]


def lines(path):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").split("\n")[:-1]]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def vllm_stand_in(monkeypatch, texts):
    """A module with vLLM's interface that answers `texts(params)`; what it is asked goes to the list that comes back."""
    seen = []

    class LLM:
        def __init__(self, **kwargs):
            seen.append(kwargs)
            self.llm_engine = SimpleNamespace(model_config=SimpleNamespace(max_model_len=2048))

        def generate(self, prompts, params, use_tqdm):
            assert all(prompt["prompt_token_ids"] for prompt in prompts)
            seen.append((len(prompts), params[0]))
            made = [{"finish_reason": "stop", "token_ids": [1, 2], **texts(one)} for one in params]
            return [SimpleNamespace(outputs=[SimpleNamespace(**one)]) for one in made]

    module = types.ModuleType("vllm")
    module.LLM, module.SamplingParams, module.__spec__ = LLM, SimpleNamespace, SimpleNamespace()
    monkeypatch.setitem(sys.modules, "vllm", module)
    return seen
