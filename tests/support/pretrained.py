"""SmolLM2-135M-Instruct, where ``make smollm2`` has written it, and rows for it."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

MODEL = Path(sys.prefix) / "models" / "SmolLM2-135M-Instruct"
GGUF = MODEL.with_name("SmolLM2-135M-Instruct.Q4_1.gguf")  # of which the folder was made
needs_model = [
    pytest.mark.real,
    pytest.mark.long,
    pytest.mark.skipif(not (MODEL / "config.json").is_file(), reason=f"no model in {MODEL}; make smollm2 writes it"),
]
QUESTION, ANSWER = "What is the capital of France?", "Paris"
# Three rows of GSM8K.
ROWS = [
    {
        "question": "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. How "
        "many clips did Natalia sell altogether in April and May?",
        "answer": "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nNatalia sold 48+24 = <<48+24=72>>72 clips altogether in "
        "April and May.\n#### 72",
    },
    {
        "question": "Weng earns $12 an hour for babysitting. Yesterday, she just did 50 minutes of babysitting. How much "
        "did she earn?",
        "answer": "Weng earns 12/60 = $<<12/60=0.2>>0.2 per minute.\nWorking 50 minutes, she earned 0.2 x 50 = "
        "$<<0.2*50=10>>10.\n#### 10",
    },
    {
        "question": "James writes a 3-page letter to 2 different friends twice a week.  How many pages does he write a "
        "year?",
        "answer": "He writes each friend 3*2=<<3*2=6>>6 pages a week\nSo he writes 6*2=<<6*2=12>>12 pages every week\nThat "
        "means he writes 12*52=<<12*52=624>>624 pages a year\n#### 624",
    },
]


def answer_of(folder: str | Path) -> str:
    """What plain transformers, without this library, answers to `QUESTION` with a model."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    chat = [{"role": "user", "content": QUESTION}]
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**inputs, max_new_tokens=24, do_sample=False)
    return str(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
