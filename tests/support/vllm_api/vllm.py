"""A stand-in for vLLM: the signatures of version 0.33.0 as far as the library calls them; `seen` holds what it was asked."""

import json
from pathlib import Path
from types import SimpleNamespace

seen = []


class SamplingParams:
    """`vllm/sampling_params.py`, a struct of these fields and more."""

    def __init__(
        self, temperature=1.0, top_p=1.0, top_k=0, seed=None, stop_token_ids=None, max_tokens=16, logit_bias=None
    ):  # fmt: skip
        self.temperature, self.top_p, self.top_k, self.seed = temperature, top_p, top_k, seed
        self.stop_token_ids, self.max_tokens, self.logit_bias = stop_token_ids, max_tokens, logit_bias


class LLM:
    """`vllm/entrypoints/llm.py`."""

    def __init__(
        self, model, *, tokenizer=None, trust_remote_code=False, tensor_parallel_size=1, dtype="auto", seed=0,
        max_model_len=2048,
    ):  # fmt: skip
        seen.append({"model": model, "tokenizer": tokenizer})
        rows = json.loads((Path(model) / "config.json").read_text())["vocab_size"]
        limits = SimpleNamespace(max_model_len=max_model_len, get_vocab_size=lambda: rows)
        self.llm_engine = SimpleNamespace(model_config=limits)

    def generate(self, prompts, sampling_params=None, *, use_tqdm=True):
        assert all(prompt["prompt_token_ids"] for prompt in prompts) and len(prompts) == len(sampling_params)
        seen.append(SimpleNamespace(params=sampling_params))
        answer = SimpleNamespace(finish_reason="stop", token_ids=[1, 2], text=" five ")
        return [SimpleNamespace(outputs=[answer]) for _ in prompts]
