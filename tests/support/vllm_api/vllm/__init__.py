"""A stand-in for vLLM: the signatures of version 0.33.0 as far as the library calls them, and what it refuses there.

`seen` holds what it was asked; `answer(params)` makes the answer. An answer names the process's GPUs and the adapter.
"""

import json
import os
from pathlib import Path
from types import SimpleNamespace

seen = []
# Of `vllm/engine/arg_utils.py:EngineArgs`, to which `LLM` hands what it does not name; `max_lora_rank` is `MaxLoRARanks`.
ENGINE_ARGS = {"max_model_len", "enable_lora", "max_lora_rank", "data_parallel_size", "distributed_executor_backend"}
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


def answer(params):
    return {"text": f" {params.seed} on WHERE "}


class SamplingParams:
    """`vllm/sampling_params.py`, a struct of these fields and more."""

    def __init__(
        self, n=1, temperature=1.0, top_p=1.0, top_k=0, seed=None, stop=None, stop_token_ids=None, ignore_eos=False,
        max_tokens=16, logit_bias=None, skip_special_tokens=True,
    ):  # fmt: skip
        self.temperature, self.top_p, self.top_k, self.seed = temperature, top_p, top_k, seed
        self.stop_token_ids, self.max_tokens, self.logit_bias = stop_token_ids, max_tokens, logit_bias


class LLM:
    """`vllm/entrypoints/llm.py`."""

    def __init__(
        self, model, *, tokenizer=None, trust_remote_code=False, tensor_parallel_size=1, dtype="auto", seed=0, **kwargs
    ):  # fmt: skip
        wrong = set(kwargs) - ENGINE_ARGS
        if wrong:
            raise TypeError(f"EngineArgs.__init__() got an unexpected keyword argument {min(wrong)!r}")
        if kwargs.get("data_parallel_size", 1) > 1:
            raise ValueError("LLM(data_parallel_size=2) is not supported for single-process usage and may hang.")
        if kwargs.get("max_lora_rank", 16) not in RANKS:
            raise ValueError(f"1 validation error for LoRAConfig\nmax_lora_rank\n  Input should be 1, 8 or {RANKS[2]}")
        given = {"model": model, "tokenizer": tokenizer, "dtype": dtype, "seed": seed}
        self.given = (
            given | {"tensor_parallel_size": tensor_parallel_size, "trust_remote_code": trust_remote_code} | kwargs
        )
        seen.append(self.given)
        rows = json.loads((Path(model) / "config.json").read_text())["vocab_size"]
        limit = kwargs.get("max_model_len", 2048)
        self.llm_engine = SimpleNamespace(
            model_config=SimpleNamespace(max_model_len=limit, get_vocab_size=lambda: rows)
        )

    def generate(
        self, prompts, sampling_params=None, *, use_tqdm=True, lora_request=None, priority=None,
        tokenization_kwargs=None, mm_processor_kwargs=None,
    ):  # fmt: skip
        assert all(prompt["prompt_token_ids"] for prompt in prompts) and len(prompts) == len(sampling_params)
        assert lora_request is None or self.given["enable_lora"]
        seen.append(SimpleNamespace(params=sampling_params, lora=lora_request))
        where = f"GPUs {os.environ.get('CUDA_VISIBLE_DEVICES')} with {lora_request and lora_request.lora_path}"
        made = [{"finish_reason": "stop", "token_ids": [1, 2], **answer(params)} for params in sampling_params]
        for one in made:
            one["text"] = one["text"].replace("WHERE", where)
        return [SimpleNamespace(outputs=[SimpleNamespace(**one)]) for one in made]
