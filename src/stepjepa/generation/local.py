"""The model in memory as a generator: batches that give each prompt the continuation it would get alone.

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
from transformers import GenerationConfig

from stepjepa.data.prompts import Prompter
from stepjepa.errors import ConfigError
from stepjepa.generation.base import Reply, Request, mended, refuse_long, seed_of
from stepjepa.modeling.load import is_preset, max_positions
from stepjepa.utils.failures import saying_out_of_memory

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
    model: Any,
    tokenizer: Any,
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
    """Continue every prompt; greedy unless a temperature is given.

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

    Returns:
        One `Generation` per prompt, in the order of `prompts`.

    Raises:
        ValueError: an empty prompt or a number out of range.
    """
    if not all(len(prompt) for prompt in prompts):
        raise ValueError("a prompt is empty; a causal model needs at least one token to continue")
    if max_new_tokens < 1 or batch_size < 1:
        raise ValueError(f"max_new_tokens ({max_new_tokens}) and batch_size ({batch_size}) must be at least 1")
    if temperature < 0 or not 0 < top_p <= 1:
        raise ValueError(f"temperature ({temperature}) must not be negative, top_p ({top_p}) above 0 and at most 1")
    stop = tokenizer.eos_token_id if eos_token_ids is None else eos_token_ids
    stop_ids = [] if stop is None else [stop] if isinstance(stop, int) else list(stop)
    pad_id = tokenizer.pad_token_id
    if pad_id is None:  # masked out in the prompt and cut off after the stop token, so any valid id will do
        pad_id = stop_ids[0] if stop_ids else 0
    sampling = {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": 0}
    config = GenerationConfig(
        max_new_tokens=max_new_tokens,
        eos_token_id=stop_ids or None,
        pad_token_id=pad_id,
        num_beams=1,
        use_cache=True,
        suppress_tokens=list(suppressed) or None,
        **(sampling if temperature > 0 else {"do_sample": False}),
    )
    device = model.get_input_embeddings().weight.device
    results: dict[int, Generation] = {}
    order = sorted(range(len(prompts)), key=lambda index: -len(prompts[index]))
    with torch.inference_mode(), eval_mode(model), _config_set_aside(model, config), _seeded(seed, device):
        for begin in range(0, len(order), batch_size):
            chosen = order[begin : begin + batch_size]
            ids_BT, mask_BT = _left_padded([prompts[index] for index in chosen], pad_id, device)
            output_BT = model.generate(input_ids=ids_BT, attention_mask=mask_BT, generation_config=config)
            for index, new_ids in zip(chosen, output_BT[:, ids_BT.shape[1] :].tolist(), strict=True):
                end = next((position for position, token in enumerate(new_ids) if token in stop_ids), None)
                text = tokenizer.decode(new_ids[:end], skip_special_tokens=True, clean_up_tokenization_spaces=False)
                results[index] = Generation(new_ids[:end], text, stopped=end is not None)
    return [results[index] for index in range(len(prompts))]


def _left_padded(
    prompts: Sequence[Sequence[int]], pad_id: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask, both (B, T) int64, T the longest prompt's length."""
    width = max(len(prompt) for prompt in prompts)
    ids_BT = torch.full((len(prompts), width), pad_id, dtype=torch.long)
    mask_BT = torch.zeros_like(ids_BT)
    for row, prompt in enumerate(prompts):
        ids_BT[row, width - len(prompt) :] = torch.as_tensor(prompt, dtype=torch.long)
        mask_BT[row, width - len(prompt) :] = 1
    return ids_BT.to(device), mask_BT.to(device)


@contextmanager
def eval_mode(model: torch.nn.Module) -> Iterator[None]:
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
def _config_set_aside(model: torch.nn.Module, config: GenerationConfig) -> Iterator[None]:
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


@contextmanager
def _seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    kept = nullcontext() if seed is None else torch.random.fork_rng([device] if device.type == "cuda" else [])
    with kept:
        if seed is not None:
            torch.manual_seed(seed)
        yield


class LocalGenerator:
    """Generates batches with a model in memory, also one that is being trained.

    The batches are formed of all requests, longest prompt first, and each is sampled with a seed of its own. So the same
    requests with the same batch size give the same replies, whether or not the run was interrupted.

    Args:
        model: a causal LM, on its device.
        prompter: makes the prompts.
        max_new_tokens, top_p: of the sampling.
        batch_size: requests per batch.
        overwrite: the flag that lets the command start again.
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
            f"out of memory with {len(batch)} questions at once; what is done is kept; lower --batch_size (another one "
            f"starts again, see {self._overwrite}) or --max_new_tokens"
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


def move_to_device(model: Any, name: str, advice: str) -> str:
    """Put a model onto the GPU, if there is one; its size, dtype and device as one phrase.

    Raises:
        ConfigError: it does not fit; `advice` says what to do.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with saying_out_of_memory(f"--model_name {name}: does not fit on this GPU; {advice}"):
        model.to(device)
    kind = str(next(model.parameters()).dtype).removeprefix("torch.")
    return f"{sum(p.numel() for p in model.parameters()):,} parameters, {kind} on {device}"


def refuse_preset(name: str) -> None:
    """Refuse a preset, whose weights are random.

    Raises:
        ConfigError: `name` is one.
    """
    if is_preset(name):
        raise ConfigError(
            f"--model_name {name}: a preset has random weights; name a trained model, a folder or a Hub id"
        )
