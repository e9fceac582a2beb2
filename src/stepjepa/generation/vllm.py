"""A model that vLLM runs, as a generator."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterator, Sequence

from stepjepa.data.prompts import Prompter
from stepjepa.errors import ConfigError
from stepjepa.generation.base import Reply, Request, mended, refuse_long
from stepjepa.generation.options import GeneratorOptions

# vLLM forms its batches itself; this is how many replies are stored at once.
BATCH_SIZE = 256


class VllmGenerator:
    """Hands requests to vLLM, each with a seed of its own.

    Args:
        name: the model, as vLLM takes it.
        prompter: makes the prompts.

    Raises:
        ConfigError: vLLM cannot load it.
    """

    def __init__(self, name: str, prompter: Prompter, options: GeneratorOptions):
        arguments = {"dtype": options.dtype, "trust_remote_code": options.trust_remote_code, "seed": options.seed}
        try:
            from vllm import LLM

            self._engine = LLM(model=name, **{**arguments, **(options.vllm_options or {})})
        except Exception as error:
            why = (str(error).splitlines() or [type(error).__name__])[0]
            raise ConfigError(f"--model_name {name}: vLLM cannot load it ({why})") from None
        config = getattr(getattr(self._engine, "llm_engine", None), "model_config", None)
        limit = getattr(config, "max_model_len", None)
        self._longest_prompt = None if limit is None else limit - 1
        self._prompter, self._options = prompter, options
        self._stop_ids = prompter.stop_ids(None)  # vLLM adds the tokens that the model itself names

    def answer(self, requests: Sequence[Request], done: Collection[int]) -> Iterator[list[Reply]]:
        """A batch of replies at a time."""
        prompts = {request.row: self._prompter.ids(request.messages) for request in requests}
        refused, fitting = refuse_long(requests, prompts, self._longest_prompt, done)
        if refused:
            yield refused
        todo = [request for request in fitting if request.row not in done]
        size = self._options.batch_size or BATCH_SIZE
        for begin in range(0, len(todo), size):
            yield self._generate(todo[begin : begin + size], prompts)

    def _generate(self, batch: list[Request], prompts: dict[int, list[int]]) -> list[Reply]:
        from vllm import SamplingParams

        settings = {"top_p": self._options.top_p, "max_tokens": self._options.max_new_tokens}
        outputs = self._engine.generate(
            [{"prompt_token_ids": prompts[request.row]} for request in batch],
            [
                SamplingParams(
                    temperature=request.temperature, seed=request.seed, stop_token_ids=self._stop_ids, **settings
                )
                for request in batch
            ],
            use_tqdm=False,
        )
        replies = []
        for request, output in zip(batch, outputs, strict=True):
            one = output.outputs[0]
            sizes = len(prompts[request.row]), len(one.token_ids)
            replies.append(Reply(request.row, mended(one.text), one.finish_reason != "length", *sizes))
        return replies


def require_vllm() -> None:
    """Make sure that vLLM is installed.

    Raises:
        ConfigError: it is not.
    """
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError("--backend vllm: vLLM is not installed; install it with: pip install 'stepjepa[vllm]'")
