"""The model in memory as a generator, in batches that give each prompt what it would get alone.

Decoder-only models must be padded on the left to generate in batches:

    ids    pad pad pad  a   b      mask   0 0 0 1 1      positions   . . . 0 1
            c   d   e   f   g             1 1 1 1 1                  0 1 2 3 4

The batch is built here and not by the tokenizer, so the tokenizer's padding side does not matter. A model's own
`generation_config` (published models ship sampling temperatures and repetition penalties in it) is set aside while
generating: what is asked for in the call is all that happens.

Shapes: B prompts of a batch, T tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, PreTrainedTokenizerBase

from stepjepa.config.option import Names, options_of
from stepjepa.data.tokens import Prompter
from stepjepa.generation.options import OVERWRITE, GeneratorOptions
from stepjepa.generation.protocol import Reply, Request, mended, seed_of, with_room
from stepjepa.modeling.load import max_positions
from stepjepa.modeling.parts import causal_lm, vocabulary_size
from stepjepa.utils.failures import saying_out_of_memory

_NAME = Names(GeneratorOptions)
BATCH_SIZE = 16


@dataclass(frozen=True)
class Generation:
    """One continuation.

    Attributes:
        token_ids: the new tokens, without the stop token and anything after it.
        text: `token_ids` decoded, special tokens left out.
        stopped: True when the model ended by itself, False when `max_new_tokens` cut it off.
    """

    token_ids: list[int]
    text: str
    stopped: bool


def generate_batch(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    eos_token_ids: int | Sequence[int] | None = None,
    batch_size: int = BATCH_SIZE,
    *,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int | None = None,
    suppressed: Sequence[int] = (),
) -> list[Generation]:
    """Continue every prompt; greedy unless a temperature is given. One `Generation` per prompt, in their order.

    Args:
        model: any Hugging Face causal LM, PEFT models included. Its train/eval mode and generation config are
            restored afterwards.
        tokenizer: decodes the new tokens and names the pad token; its padding side is ignored.
        prompts: token ids of each prompt, none empty, no padding.
        max_new_tokens: upper bound of new tokens per prompt.
        eos_token_ids: tokens that end a continuation; the tokenizer's `eos_token_id` when None. With an empty sequence
            nothing does.
        batch_size: prompts per batch. Batches are formed by length, longest first, so that running out of memory shows
            at once.
        temperature: 0 takes the likeliest token; above 0 samples at this temperature.
        top_p: share of the probability mass to sample from; only with a temperature.
        seed: of the sampling. The global generators are left as they were when it is given.
        suppressed: tokens that are never generated.

    Raises:
        ValueError: an empty prompt.
        ConfigError: a number out of range.
    """
    if not all(len(prompt) for prompt in prompts):
        raise ValueError("a prompt is empty; a causal model needs at least one token to continue")
    bounded = {
        _NAME.max_new_tokens: max_new_tokens,
        _NAME.batch_size: batch_size,
        _NAME.temperature: temperature,
        _NAME.top_p: top_p,
    }
    for name, value in bounded.items():
        options_of(GeneratorOptions)[name].check(value)
    if eos_token_ids is None:
        eos_token_ids = tokenizer.eos_token_id
    if isinstance(eos_token_ids, int):
        eos_token_ids = [eos_token_ids]
    stop_ids = list(eos_token_ids or ())
    pad_id = tokenizer.pad_token_id
    if pad_id is None:  # masked out in the prompt and cut off after the stop token, so any valid id will do
        pad_id = stop_ids[0] if stop_ids else 0
    sampled = temperature > 0
    config = GenerationConfig(
        max_new_tokens=max_new_tokens,
        eos_token_id=stop_ids or None,
        pad_token_id=pad_id,
        num_beams=1,
        use_cache=True,
        suppress_tokens=list(suppressed) or None,
        do_sample=sampled,
        temperature=temperature if sampled else 1.0,
        top_p=top_p if sampled else 1.0,
        top_k=0 if sampled else 50,
    )
    inner: Any = model
    device = inner.get_input_embeddings().weight.device
    devices = [device] if device.type == "cuda" else []
    random = nullcontext() if seed is None else torch.random.fork_rng(devices)
    results: dict[int, Generation] = {}
    order = sorted(range(len(prompts)), key=lambda index: -len(prompts[index]))
    with torch.inference_mode(), eval_mode(model), config_set_aside(model, config), random:
        if seed is not None:
            torch.manual_seed(seed)
        for begin in range(0, len(order), batch_size):
            chosen = order[begin : begin + batch_size]
            rows = [torch.as_tensor(prompts[index], dtype=torch.long) for index in chosen]
            ids_BT = pad_sequence(rows, True, pad_id, "left")
            mask_BT = pad_sequence([torch.ones_like(row) for row in rows], True, 0, "left")
            output_BT = inner.generate(
                input_ids=ids_BT.to(device),
                attention_mask=mask_BT.to(device),
                generation_config=config,
                synced_gpus=False,  # each process has questions of its own
            )
            new_BT = output_BT[:, ids_BT.shape[1] :].tolist()
            for index, new_ids in zip(chosen, new_BT, strict=True):
                results[index] = _until_stop(tokenizer, new_ids, stop_ids)
    return [results[index] for index in range(len(prompts))]


def _until_stop(tokenizer: PreTrainedTokenizerBase, new_ids: list[int], stop_ids: Sequence[int]) -> Generation:
    ends = [position for position, token in enumerate(new_ids) if token in stop_ids]
    kept = new_ids[: ends[0]] if ends else new_ids
    text: Any = tokenizer.decode(kept, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return Generation(kept, text, stopped=bool(ends))


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode within this context; every module's own mode after it."""
    # Module by module: a model may be trained with some of its parts in evaluation mode.
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def config_set_aside(model: nn.Module, config: GenerationConfig) -> Iterator[None]:
    """This generation config alone within this context; the model's own after it."""
    # `generate` fills every value that the call leaves open from the model's own generation config. PEFT
    # keeps one on the wrapper and one on the model inside.
    owners: list[Any] = [module for module in model.modules() if "generation_config" in vars(module)]
    saved = [module.generation_config for module in owners]
    for module in owners:
        module.generation_config = config
    try:
        yield
    finally:
        for module, own in zip(owners, saved, strict=True):
            module.generation_config = own


class LocalGenerator:
    """Generates batches with a model in memory, also one that is being trained.

    The batches are formed of all requests, longest prompt first, and each is sampled with a seed of its own. So the same
    requests with the same batch size give the same replies, whether or not the run was interrupted.
    """

    def __init__(
        self,
        model: nn.Module,
        prompter: Prompter,
        max_new_tokens: int,
        top_p: float = 1.0,
        batch_size: int = BATCH_SIZE,
    ):
        self.model, self.prompter = model, prompter
        self._max_new_tokens, self._top_p = max_new_tokens, top_p
        self._batch_size = batch_size
        inner = causal_lm(model)
        config = getattr(model, "generation_config", None)
        ends = getattr(config, "eos_token_id", None)
        self._stop_ids = prompter.stop_ids(ends)
        self._suppressed = prompter.unwritable_ids(vocabulary_size(inner))
        limit = max_positions(inner)
        self._longest_prompt = None if limit is None else limit - max_new_tokens

    def answer(self, requests: Sequence[Request], done: Collection[int]) -> Iterator[list[Reply]]:
        """A batch of replies at a time. Raises ConfigError: a batch does not fit into memory."""
        prompts, refused = with_room(self.prompter, requests, self._longest_prompt, done)
        if refused:
            yield refused
        asked = [request for request in requests if request.row in prompts]
        asked.sort(key=lambda request: -len(prompts[request.row]))
        for begin in range(0, len(asked), self._batch_size):
            batch = [request for request in asked[begin : begin + self._batch_size] if request.row not in done]
            if batch:
                yield self._generate(batch, [prompts[request.row] for request in batch])

    def _generate(self, batch: Sequence[Request], prompts: Sequence[list[int]]) -> list[Reply]:
        message = (
            f"out of memory with {len(batch)} questions at once; what is done is kept; lower --{_NAME.batch_size} (another "
            f"one starts again, see {OVERWRITE}) or --{_NAME.max_new_tokens}"
        )
        with saying_out_of_memory(message):
            generations = generate_batch(
                self.model,
                self.prompter.tokenizer,
                prompts,
                self._max_new_tokens,
                self._stop_ids,
                len(batch),
                temperature=batch[0].temperature,
                top_p=self._top_p,
                seed=seed_of(0, *(request.seed for request in batch)),
                suppressed=self._suppressed,
            )
        replies = []
        for request, ids, one in zip(batch, prompts, generations, strict=True):
            text = mended(self.prompter.response(one.token_ids, one.text, ids))
            replies.append(Reply(request.row, text, one.stopped, len(ids), len(one.token_ids) + one.stopped))
        return replies
