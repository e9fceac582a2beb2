"""vLLM as a generator: one engine in this process, on one GPU or on several that share the model."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from stepjepa.config.option import Names
from stepjepa.data.tokens import Prompter
from stepjepa.errors import ConfigError, said
from stepjepa.generation.options import GeneratorOptions
from stepjepa.generation.protocol import Reply, Request, mended, with_room
from stepjepa.utils.failures import library

_NAME = Names(GeneratorOptions)
_MODEL = f"--{_NAME.model_name}"
BATCH_SIZE = 256  # vLLM forms its batches itself; this is how many replies are stored at once
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # that `max_lora_rank` may be, in every version of vLLM
# What an adapter may hold besides plain LoRA: by version, vLLM refuses it in the middle of the work, or leaves it out.
_NOT_PLAIN = "use_dora modules_to_save trainable_token_indices lora_bias bias rank_pattern alpha_pattern".split()


class VllmGenerator:
    """Hands requests to vLLM, each with a seed of its own.

    Args:
        model: a Hub id or folder; with an adapter its base.
        adapter: the folder of a LoRA adapter, whose configuration is `config`; None for none.

    Raises:
        ConfigError: vLLM cannot load the model, or would refuse its adapter.
    """

    def __init__(
        self,
        model: str,
        adapter: str | None,
        config: Mapping[str, Any],
        prompter: Prompter,
        options: GeneratorOptions,
    ):
        arguments = {
            "model": model,
            "tokenizer": prompter.tokenizer.name_or_path,
            _NAME.dtype: options.dtype,
            _NAME.seed: options.seed,
            _NAME.trust_remote_code: options.trust_remote_code,
            _NAME.tensor_parallel_size: options.tensor_parallel_size,
        }
        if adapter is not None:
            arguments |= {"enable_lora": True, "max_lora_rank": _allowed_rank(adapter, config)}
        vllm = library("vllm", "vllm")
        try:
            self._llm = vllm.LLM(**arguments, **(options.vllm_options or {}))
        except Exception as error:
            raise ConfigError(f"{_MODEL} {model}: vLLM cannot load it ({said(error)})") from None
        self._lora = None
        if adapter is not None:
            self._lora = library("vllm.lora.request", "vllm").LoRARequest("adapter", 1, adapter)
        limits = self._llm.llm_engine.model_config
        self._prompter, self._longest_prompt = prompter, limits.max_model_len - 1
        self._batch_size = options.batch_size or BATCH_SIZE
        self._params = vllm.SamplingParams
        self._sampling = {
            _NAME.top_p: options.top_p,
            "max_tokens": options.max_new_tokens,
            "stop_token_ids": prompter.stop_ids(None),  # vLLM adds the tokens that the model itself names
            "logit_bias": dict.fromkeys(prompter.unwritable_ids(limits.get_vocab_size()), -100.0) or None,
        }

    def answer(self, requests: Sequence[Request], done: Collection[int]) -> Iterator[list[Reply]]:
        """A batch of replies at a time."""
        prompts, refused = with_room(self._prompter, requests, self._longest_prompt, done)
        if refused:
            yield refused
        todo = [request for request in requests if request.row in prompts and request.row not in done]
        for begin in range(0, len(todo), self._batch_size):
            batch = todo[begin : begin + self._batch_size]
            yield self._generate(batch, [prompts[request.row] for request in batch])

    def _generate(self, batch: Sequence[Request], prompts: Sequence[list[int]]) -> list[Reply]:
        params = []
        for request in batch:
            one = self._params(temperature=request.temperature, seed=request.seed, **self._sampling)
            params.append(one)
        inputs = [{"prompt_token_ids": ids} for ids in prompts]
        outputs = self._llm.generate(inputs, params, use_tqdm=False, lora_request=self._lora)
        replies = []
        for request, ids, output in zip(batch, prompts, outputs, strict=True):
            answer = output.outputs[0]
            written = list(answer.token_ids)
            text = mended(self._prompter.response(written, answer.text, ids))
            stopped = answer.finish_reason != "length"
            replies.append(Reply(request.row, text, stopped, len(ids), len(written)))
        return replies


def _allowed_rank(adapter: str, config: Mapping[str, Any]) -> int:
    """The smallest `max_lora_rank` for an adapter of this configuration. Raises ConfigError: vLLM cannot use it."""
    rank = config.get("r")
    more = [name for name in _NOT_PLAIN if config.get(name) not in (None, False, "none", [], {})]
    fitting = [one for one in _RANKS if isinstance(rank, int) and one >= rank]
    if more or not fitting:
        why = more[0] if more else f"the rank {rank}"
        raise ConfigError(
            f"{_MODEL} {adapter}: vLLM takes plain LoRA up to rank {_RANKS[-1]}, not {why} of this one; merge it (stepjepa "
            f"export {adapter} OUT --merge_lora true, or PEFT's merge_and_unload), or use --{_NAME.backend} transformers"
        )
    return fitting[0]
