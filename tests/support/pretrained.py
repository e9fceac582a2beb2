"""SmolLM2-135M-Instruct, where ``make smollm2`` has written it, and rows for it."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from support.rows import gsm8k

MODEL = Path(sys.prefix) / "models" / "SmolLM2-135M-Instruct"
GGUF = MODEL.with_name("SmolLM2-135M-Instruct.Q4_1.gguf")  # of which the folder was made
needs_model = [
    pytest.mark.real,
    pytest.mark.long,
    pytest.mark.skipif(not (MODEL / "config.json").is_file(), reason=f"no model in {MODEL}; make smollm2 writes it"),
]
QUESTION, ANSWER = "What is the capital of France?", "Paris"
ROWS = [gsm8k(number) for number in (3, 14, 25)]


def answer_of(folder: str | Path) -> str:
    """What plain transformers, without this library, answers to `QUESTION` with a model."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    chat = [{"role": "user", "content": QUESTION}]
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**inputs, max_new_tokens=24, do_sample=False)
    return str(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
