"""A teacher that runs here, with transformers; and what any local teacher refuses."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch

from stepjepa.data.prompts import Prompter
from stepjepa.errors import ConfigError
from stepjepa.evaluation.generate import generate_batch
from stepjepa.evaluation.memory import saying_out_of_memory
from stepjepa.evaluation.teachers.options import TeacherOptions
from stepjepa.evaluation.teachers.requests import Reply, Request, mended, seed_of
from stepjepa.modeling.load import is_preset, load_model, load_tokenizer, max_positions

BATCH_SIZE = 16


class TransformersTeacher:
    """Generates batches with a model of transformers.

    The batches of an attempt are formed of all its requests, longest prompt first, and each is sampled with a seed of its
    own. So the same requests with the same batch size give the same replies, whether or not the run was interrupted.

    Args:
        model: a causal LM, on its device.
        prompter: makes the prompts.
        max_new_tokens, top_p: of the sampling.
        batch_size: requests a batch.
        overwrite: the flag that lets a run begin anew.
    """

    def __init__(
        self,
        model: Any,
        prompter: Prompter,
        max_new_tokens: int,
        top_p: float = 1.0,
        batch_size: int = BATCH_SIZE,
        overwrite: str = "--overwrite",
    ):
        self._model, self._prompter, self._overwrite = model, prompter, overwrite
        self._max_new_tokens, self._top_p, self._batch_size = max_new_tokens, top_p, batch_size
        config = getattr(model, "generation_config", None)
        self._stop_ids = prompter.stop_ids(getattr(config, "eos_token_id", None))
        self._suppressed = prompter.unwritable_ids(model.get_input_embeddings().weight.shape[0])
        limit = max_positions(model)
        self._longest_prompt = None if limit is None else limit - max_new_tokens

    def answer(self, requests: Sequence[Request], done: Collection[int]) -> Iterator[list[Reply]]:
        """A batch of replies at a time.

        Raises:
            ConfigError: a batch does not fit into memory.
        """
        prompts = {request.row: self._prompter.ids(request.messages) for request in requests}
        refused, fitting = refuse_long(requests, prompts, self._longest_prompt, done)
        if refused:
            yield refused
        order = sorted(fitting, key=lambda request: -len(prompts[request.row]))
        for begin in range(0, len(order), self._batch_size):
            batch = [request for request in order[begin : begin + self._batch_size] if request.row not in done]
            if batch:
                yield self._generate(batch, prompts)

    def _generate(self, batch: list[Request], prompts: dict[int, list[int]]) -> list[Reply]:
        message = (
            f"out of memory with {len(batch)} questions at once; what is done is kept; lower --batch_size (with another one "
            f"a run begins anew, see {self._overwrite}) or --max_new_tokens"
        )
        with saying_out_of_memory(message):
            generations = generate_batch(
                self._model,
                self._prompter.tokenizer,
                [prompts[request.row] for request in batch],
                self._max_new_tokens,
                self._stop_ids,
                len(batch),
                temperature=batch[0].temperature,
                top_p=self._top_p,
                seed=seed_of(0, *(request.seed for request in batch)),
                suppressed=self._suppressed,
            )
        return [
            Reply(
                request.row,
                mended(generation.text),
                generation.stopped,
                len(prompts[request.row]),
                len(generation.token_ids) + generation.stopped,
            )
            for request, generation in zip(batch, generations, strict=True)
        ]


def refuse_long(
    requests: Sequence[Request], prompts: dict[int, list[int]], longest: int | None, done: Collection[int]
) -> tuple[list[Reply], list[Request]]:
    """Refusals of the prompts that the model has no room for and that are not done yet, and the requests that fit."""
    too_long = [r for r in requests if longest is not None and len(prompts[r.row]) > longest]
    refused = [
        Reply(
            request.row,
            "",
            stopped=False,
            refused=f"the prompt has {len(prompts[request.row])} tokens, and the model has room for {longest}",
        )
        for request in too_long
        if request.row not in done
    ]
    rows = {request.row for request in too_long}
    return refused, [request for request in requests if request.row not in rows]


def load_transformers_teacher(options: TeacherOptions) -> tuple[TransformersTeacher, str]:
    """The teacher, and in words what it is and where it runs.

    Raises:
        ConfigError: it cannot be loaded.
    """
    name = str(options.model_name)
    refuse_preset(name)
    tokenizer = load_tokenizer(name, trust_remote_code=options.trust_remote_code)
    prompter = Prompter(tokenizer, options.chat_template, options.plain)
    model = load_model(
        name,
        tokenizer,
        dtype=options.dtype,
        attn_implementation=options.attn_implementation,
        trust_remote_code=options.trust_remote_code,
    )
    words = move_to_device(model, name, "use --backend vllm or openai")
    size = options.batch_size or BATCH_SIZE
    teacher = TransformersTeacher(model, prompter, options.max_new_tokens, options.top_p, size)
    return teacher, f"{words}, batches of {size}"


def move_to_device(model: Any, name: str, advice: str) -> str:
    """Put a model onto the GPU, if there is one, and say in words what it is and where it runs.

    Raises:
        ConfigError: it does not fit; `advice` says what to do.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with saying_out_of_memory(f"--model_name {name}: does not fit on this GPU; {advice}"):
        model.to(device)
    kind = str(next(model.parameters()).dtype).removeprefix("torch.")
    return f"{sum(p.numel() for p in model.parameters()):,} parameters, {kind} on {device}"


def refuse_preset(name: str) -> None:
    """A preset has random weights and nothing to teach.

    Raises:
        ConfigError: `name` is one.
    """
    if is_preset(name):
        raise ConfigError(
            f"--model_name {name}: a preset has random weights; name a trained model, a folder or a Hub id"
        )
