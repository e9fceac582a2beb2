"""vLLM as a generator: one engine in this process, on one GPU or on several that share the model."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stepjepa.config.option import Names
from stepjepa.errors import ConfigError, said
from stepjepa.generation import Reply, Request, mended, with_room
from stepjepa.generation.options import GeneratorOptions
from stepjepa.utils.failures import library

if TYPE_CHECKING:
    from stepjepa.data.tokens import Prompter
    from stepjepa.generation.local import Place

_NAME = Names(GeneratorOptions)
BATCH_SIZE = 256  # vLLM forms its batches itself; this is how many replies are stored at once
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # that `max_lora_rank` may be, in every version of vLLM
# What an adapter may hold besides plain LoRA: by version, vLLM refuses it in the middle of the work, or leaves it out.
_NOT_PLAIN = "use_dora modules_to_save trainable_token_indices lora_bias bias rank_pattern alpha_pattern".split()
_Batch = Sequence[tuple[Sequence[int], Mapping[str, Any]]]  # the ids of a prompt, and its sampling


class VllmGenerator:
    """Hands requests to vLLM, each with a seed of its own; `description` is a phrase.

    Raises:
        ConfigError: vLLM cannot load the model or would refuse its adapter, or there are too few GPUs.
    """

    def __init__(self, place: Place, prompter: Prompter, options: GeneratorOptions, no_lora: bool = False):
        _require_gpus(options)
        same = (_NAME.dtype, _NAME.seed, _NAME.trust_remote_code, _NAME.tensor_parallel_size)
        arguments = {"model": place.base or place.name, "tokenizer": prompter.tokenizer.name_or_path}
        arguments |= {name: getattr(options, name) for name in same}
        self.description = "vLLM"
        adapter = None if no_lora or place.base is None else str(place.folder)
        if adapter is not None:
            arguments |= {"enable_lora": True, "max_lora_rank": _allowed_rank(adapter, place.adapter)}
            self.description += f", adapter on {place.base}"
        self._engine = _Engine(arguments | (options.vllm_options or {}), adapter)
        longest, vocabulary = self._engine.limits
        self._prompter, self._longest_prompt = prompter, longest - 1
        self._batch_size = options.batch_size or BATCH_SIZE
        self._sampling = {
            _NAME.top_p: options.top_p,
            "max_tokens": options.max_new_tokens,
            "stop_token_ids": prompter.stop_ids(None),  # vLLM adds the tokens that the model itself names
            "logit_bias": dict.fromkeys(prompter.unwritable_ids(vocabulary), -100.0) or None,
        }

    def answer(self, requests: Sequence[Request], done: Collection[int]) -> Iterator[list[Reply]]:
        """A batch of replies at a time."""
        prompts, refused = with_room(self._prompter, requests, self._longest_prompt, done)
        if refused:
            yield refused
        todo = [request for request in requests if request.row in prompts and request.row not in done]
        batches = [todo[begin : begin + self._batch_size] for begin in range(0, len(todo), self._batch_size)]
        own = {one.row: {_NAME.temperature: one.temperature, _NAME.seed: one.seed, **self._sampling} for one in todo}
        for batch in batches:
            answers = self._engine.ask([(prompts[one.row], own[one.row]) for one in batch])
            replies = []
            for one, (text, ended, written) in zip(batch, answers, strict=True):
                ids = prompts[one.row]
                text = mended(self._prompter.response(written, text, ids))
                replies.append(Reply(one.row, text, ended, len(ids), len(written)))
            yield replies


def _require_gpus(options: GeneratorOptions) -> None:
    """Raise ConfigError where there are fewer GPUs than are to share the model."""
    import torch

    wanted = options.tensor_parallel_size
    available = torch.cuda.device_count()
    # Ray, for one, reaches GPUs of other machines.
    if wanted > max(1, available) and "distributed_executor_backend" not in (options.vllm_options or {}):
        raise ConfigError(f"--{_NAME.tensor_parallel_size} {wanted} needs {wanted} GPUs, and there are {available}")


def _allowed_rank(adapter: str, config: Mapping[str, Any]) -> int:
    """The smallest `max_lora_rank` for an adapter of this configuration. Raises ConfigError: vLLM cannot use it."""
    odd = [name for name in _NOT_PLAIN if config.get(name) not in (None, False, "none", [], {})]
    rank = config.get("r")
    fitting = [one for one in _RANKS if type(rank) is int and one >= rank]
    if odd or not fitting:
        why = f"{odd[0] if odd else f'the rank {rank}'} of this one"
        raise ConfigError(
            f"--{_NAME.model_name} {adapter}: vLLM takes plain LoRA up to rank {_RANKS[-1]}, not {why}; merge it (stepjepa "
            f"export {adapter} OUT --merge_lora true, or PEFT's merge_and_unload), or use --{_NAME.backend} transformers"
        )
    return fitting[0]


class _Engine:
    """vLLM with a model, and an adapter or None; raises ConfigError."""

    def __init__(self, arguments: Mapping[str, Any], adapter: str | None):
        vllm = library("vllm", "vllm")
        try:
            self._llm = vllm.LLM(**arguments)
        except Exception as error:
            where = f"--{_NAME.model_name} {arguments['model']}"
            raise ConfigError(f"{where}: vLLM cannot load it ({said(error)})") from None
        self._params = vllm.SamplingParams
        self._lora = adapter and library("vllm.lora.request", "vllm").LoRARequest("adapter", 1, adapter)

    @property
    def limits(self) -> tuple[int, int]:
        """The most tokens of a chat, and the size of the vocabulary."""
        config = self._llm.llm_engine.model_config
        return config.max_model_len, config.get_vocab_size()

    def ask(self, batch: _Batch) -> list[tuple[str, bool, list[int]]]:
        """Text, whether it ended by itself and the tokens of each answer."""
        prompts = [{"prompt_token_ids": ids} for ids, _ in batch]
        params = [self._params(**sampling) for _, sampling in batch]
        outputs = self._llm.generate(prompts, params, use_tqdm=False, lora_request=self._lora)
        answers = (output.outputs[0] for output in outputs)
        return [(one.text, one.finish_reason != "length", list(one.token_ids)) for one in answers]
