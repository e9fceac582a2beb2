"""A teacher that runs here, with vLLM."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Protocol

from stepjepa.data.prompts import Prompter
from stepjepa.errors import ConfigError
from stepjepa.evaluation.teachers.local import refuse_long, refuse_preset
from stepjepa.evaluation.teachers.options import TeacherOptions
from stepjepa.evaluation.teachers.requests import Reply, Request, mended
from stepjepa.modeling.load import load_tokenizer

# vLLM forms its batches itself; this is how many replies are stored at once.
BATCH_SIZE = 256


class VllmTeacher:
    """Hands requests to vLLM, each with a seed of its own.

    Args:
        engine: a `vllm.LLM`.
        prompter: makes the prompts.
        max_new_tokens, top_p: of the sampling.
        stop_ids: tokens that end a response.
        longest_prompt: tokens that the engine has room for, None where that is unknown.
        batch_size: requests handed over at once.
    """

    def __init__(
        self,
        engine: Any,
        prompter: Prompter,
        max_new_tokens: int,
        top_p: float,
        stop_ids: list[int],
        longest_prompt: int | None = None,
        batch_size: int = BATCH_SIZE,
    ):
        self._engine, self._prompter, self._batch_size = engine, prompter, batch_size
        self._max_new_tokens, self._top_p, self._stop_ids = max_new_tokens, top_p, stop_ids
        self._longest_prompt = longest_prompt

    def answer(self, requests: Sequence[Request], done: Collection[int]) -> Iterator[list[Reply]]:
        """A batch of replies at a time."""
        from vllm import SamplingParams

        prompts = {request.row: self._prompter.ids(request.messages) for request in requests}
        refused, fitting = refuse_long(requests, prompts, self._longest_prompt, done)
        if refused:
            yield refused
        todo = [request for request in fitting if request.row not in done]
        for begin in range(0, len(todo), self._batch_size):
            batch = todo[begin : begin + self._batch_size]
            outputs = self._engine.generate(
                [{"prompt_token_ids": prompts[request.row]} for request in batch],
                [
                    SamplingParams(
                        temperature=request.temperature,
                        top_p=self._top_p,
                        max_tokens=self._max_new_tokens,
                        seed=request.seed,
                        stop_token_ids=self._stop_ids,
                    )
                    for request in batch
                ],
                use_tqdm=False,
            )
            yield [
                Reply(
                    request.row,
                    mended(output.outputs[0].text),
                    output.outputs[0].finish_reason != "length",
                    len(prompts[request.row]),
                    len(output.outputs[0].token_ids),
                )
                for request, output in zip(batch, outputs, strict=True)
            ]


def load_vllm_teacher(options: TeacherOptions) -> tuple[VllmTeacher, str]:
    """The teacher, and in words what it is.

    Raises:
        ConfigError: vLLM is not installed, or cannot load the model.
    """
    require_vllm()
    name = str(options.model_name)
    refuse_preset(name)
    tokenizer = load_tokenizer(name, trust_remote_code=options.trust_remote_code)
    return make_vllm_teacher(name, Prompter(tokenizer, options.chat_template, options.plain), options), "vLLM"


class EngineOptions(Protocol):
    """The options that vLLM is started with."""

    dtype: Any
    trust_remote_code: bool
    seed: int
    vllm_options: dict[str, Any] | None
    max_new_tokens: int
    top_p: float
    batch_size: int | None


def make_vllm_teacher(name: str, prompter: Prompter, options: EngineOptions) -> VllmTeacher:
    """A teacher of a model that vLLM loads.

    Raises:
        ConfigError: it cannot.
    """
    arguments = {"dtype": options.dtype, "trust_remote_code": options.trust_remote_code, "seed": options.seed}
    try:
        from vllm import LLM

        engine = LLM(model=name, **{**arguments, **(options.vllm_options or {})})
    except Exception as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"--model_name {name}: vLLM cannot load it ({why})") from None
    limit = getattr(getattr(getattr(engine, "llm_engine", None), "model_config", None), "max_model_len", None)
    return VllmTeacher(
        engine,
        prompter,
        options.max_new_tokens,
        options.top_p,
        # vLLM adds the tokens that the model itself names.
        prompter.stop_ids(None),
        None if limit is None else limit - 1,
        options.batch_size or BATCH_SIZE,
    )


def require_vllm() -> None:
    """Make sure that vLLM is there.

    Raises:
        ConfigError: it is not installed.
    """
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError("--backend vllm: vLLM is not installed; install it with: pip install 'stepjepa[vllm]'")
