"""A teacher that runs here, with transformers; and what any local teacher needs to know of its prompts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from stepjepa.data.chat import ChatRenderer, RowError, load_chat_template, plain_template
from stepjepa.data.tokens import TurnEnds
from stepjepa.errors import ConfigError
from stepjepa.evaluation.generate import generate_batch
from stepjepa.evaluation.teachers.options import TeacherOptions
from stepjepa.evaluation.teachers.requests import Reply, Request, seed_of, tidy
from stepjepa.modeling.load import is_preset, load_model, load_tokenizer, max_positions

BATCH_SIZE = 16


class Prompter:
    """Turns chats into prompts of token ids.

    Attributes:
        tokenizer: the teacher's.
        end_of_turn: the token that its template writes behind an answer, None where that is no special one.

    Raises:
        ConfigError: the tokenizer has no chat template.
    """

    def __init__(self, tokenizer: Any, chat_template: str | None = None, plain: bool = False):
        if chat_template:
            tokenizer.chat_template = load_chat_template(chat_template)
        elif plain:
            tokenizer.chat_template = plain_template(tokenizer)
        self.tokenizer, self._renderer = tokenizer, ChatRenderer(tokenizer)
        self.end_of_turn = self._find_end_of_turn()

    def ids(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """The prompt of a chat that the assistant is to answer; the template writes all special tokens.

        Raises:
            ConfigError: the template refuses the chat.
        """
        try:
            text = self._renderer.prompt(messages)
        except Exception as error:  # jinja2 raises its own and the template's errors
            raise ConfigError(f"the chat template refuses a question: {error}; see --system_prompt none") from None
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def stop_ids(self, own: int | Sequence[int] | None) -> list[int]:
        """Tokens that end a response: those that the model names, the tokenizer's EOS, the template's end of turn."""
        named = [own] if isinstance(own, int) else list(own or ())
        return sorted({*named, self.tokenizer.eos_token_id, self.end_of_turn} - {None})

    def _find_end_of_turn(self) -> int | None:
        try:
            chat = self._renderer.render([{"role": "user", "content": "x"}, {"role": "assistant", "content": "x"}])
        except RowError:
            return None
        tail = self.tokenizer(chat.text[chat.spans[-1].end :], add_special_tokens=False)["input_ids"]
        place = TurnEnds(self.tokenizer).find(np.asarray(tail, dtype=np.int64), 0, len(tail))
        return None if place is None else tail[place]


class TransformersTeacher:
    """Generates batches with a model of transformers.

    The batches of an attempt are formed of all its requests, longest prompt first, and each is sampled with a seed of its
    own. So the same requests with the same batch size give the same replies, whether or not the run was interrupted.

    Args:
        model: a causal LM, on its device.
        prompter: makes the prompts.
        max_new_tokens, top_p: of the sampling.
        batch_size: requests a batch.
    """

    def __init__(
        self, model: Any, prompter: Prompter, max_new_tokens: int, top_p: float = 1.0, batch_size: int = BATCH_SIZE
    ):
        self._model, self._prompter = model, prompter
        self._max_new_tokens, self._top_p, self._batch_size = max_new_tokens, top_p, batch_size
        config = getattr(model, "generation_config", None)
        self._stop_ids = prompter.stop_ids(getattr(config, "eos_token_id", None))
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
        try:
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
            )
        except torch.OutOfMemoryError:
            raise ConfigError(
                f"out of memory with {len(batch)} questions at once; what is done is kept; lower --batch_size (with "
                "another one a run begins anew, see --overwrite) or --max_new_tokens"
            ) from None
        return [
            Reply(
                request.row,
                tidy(generation.text),
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
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        model.to(device)
    except torch.OutOfMemoryError:
        raise ConfigError(f"--model_name {name}: does not fit on this GPU; use --backend vllm or openai") from None
    size = options.batch_size or BATCH_SIZE
    teacher = TransformersTeacher(model, prompter, options.max_new_tokens, options.top_p, size)
    kind = str(next(model.parameters()).dtype).removeprefix("torch.")
    return teacher, f"{sum(p.numel() for p in model.parameters()):,} parameters, {kind} on {device}, batches of {size}"


def refuse_preset(name: str) -> None:
    """A preset has random weights and nothing to teach.

    Raises:
        ConfigError: `name` is one.
    """
    if is_preset(name):
        raise ConfigError(
            f"--model_name {name}: a preset has random weights; name a trained model, a folder or a Hub id"
        )
