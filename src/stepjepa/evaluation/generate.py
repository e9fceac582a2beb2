"""Batched generation that gives each prompt the continuation it would get alone.

Decoder-only models must be padded on the left to generate in batches:

    ids    pad pad pad  a   b      mask   0 0 0 1 1      positions   . . . 0 1
            c   d   e   f   g             1 1 1 1 1                  0 1 2 3 4

The batch is built here and not by the tokenizer, so the tokenizer's padding side does not matter. A model's
own `generation_config` (published models ship sampling temperatures and repetition penalties in it) is set
aside while generating: what is asked for in the call is all that happens.

Shapes: B prompts of a batch, T tokens.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig

__all__ = ["Generation", "eval_mode", "generate_batch"]


@dataclass(frozen=True)
class Generation:
    """One continuation.

    Attributes:
        token_ids: The new tokens, without the stop token and anything behind it.
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
    batch_size: int = 16,
    *,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int | None = None,
    suppressed: Sequence[int] = (),
) -> list[Generation]:
    """Continue every prompt; greedy unless a temperature is given.

    Args:
        model: Any Hugging Face causal LM, PEFT models included. Its train/eval mode and generation config are
            afterwards as they were.
        tokenizer: Decodes the new tokens and names the pad token; its padding side is ignored.
        prompts: Token ids of each prompt, none empty, no padding.
        max_new_tokens: Upper bound of new tokens a prompt.
        eos_token_ids: Tokens that end a continuation; the tokenizer's `eos_token_id` when None. With an empty
            sequence nothing does.
        batch_size: Prompts a batch. Batches are formed by length, longest first, so that running out of
            memory shows at once.
        temperature: 0 takes the likeliest token; above 0 samples at this temperature.
        top_p: Share of the probability mass to sample from; only with a temperature.
        seed: Seed of the sampling. The global generators are left as they were when it is given.
        suppressed: Tokens that are never generated.

    Returns:
        One `Generation` a prompt, in the order of `prompts`.

    Raises:
        ValueError: On an empty prompt or a number out of range.
    """
    _check(prompts, max_new_tokens, batch_size, temperature, top_p)
    stop_ids = _stop_ids(tokenizer, eos_token_ids)
    pad_id = tokenizer.pad_token_id
    if pad_id is None:
        # Masked out in the prompt and cut off behind the stop token, so any valid id will do.
        pad_id = stop_ids[0] if stop_ids else 0
    config = _generation_config(max_new_tokens, stop_ids, pad_id, temperature, top_p, suppressed)
    device = model.get_input_embeddings().weight.device

    results: list[Generation | None] = [None] * len(prompts)
    order = sorted(range(len(prompts)), key=lambda index: -len(prompts[index]))
    with torch.inference_mode(), eval_mode(model), _config_set_aside(model, config), _seeded(seed, device):
        for begin in range(0, len(order), batch_size):
            chosen = order[begin : begin + batch_size]
            ids_BT, mask_BT = _left_padded([prompts[index] for index in chosen], pad_id, device)
            output_BT = model.generate(input_ids=ids_BT, attention_mask=mask_BT, generation_config=config)
            for index, new_ids in zip(chosen, output_BT[:, ids_BT.shape[1] :].tolist(), strict=True):
                results[index] = _cut(new_ids, stop_ids, tokenizer)
    return [result for result in results if result is not None]


def _check(
    prompts: Sequence[Sequence[int]], max_new_tokens: int, batch_size: int, temperature: float, top_p: float
) -> None:
    for index, prompt in enumerate(prompts):
        if len(prompt) == 0:
            raise ValueError(f"prompt {index} is empty; a causal model needs at least one token to continue")
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if temperature < 0:
        raise ValueError(f"temperature must not be negative, got {temperature}")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1, got {top_p}")


def _stop_ids(tokenizer: Any, eos_token_ids: int | Sequence[int] | None) -> list[int]:
    if eos_token_ids is None:
        eos_token_ids = [] if tokenizer.eos_token_id is None else tokenizer.eos_token_id
    return [eos_token_ids] if isinstance(eos_token_ids, int) else list(eos_token_ids)


def _generation_config(
    max_new_tokens: int, stop_ids: list[int], pad_id: int, temperature: float, top_p: float, suppressed: Sequence[int]
) -> GenerationConfig:
    choice: dict[str, Any] = {"do_sample": False}
    if temperature > 0:
        choice = {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": 0}
    return GenerationConfig(
        max_new_tokens=max_new_tokens,
        eos_token_id=stop_ids or None,
        pad_token_id=pad_id,
        num_beams=1,
        use_cache=True,
        suppress_tokens=list(suppressed) or None,
        **choice,
    )


def _left_padded(
    prompts: Sequence[Sequence[int]], pad_id: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask, both (B, T) int64, T the longest prompt's length."""
    width = max(len(prompt) for prompt in prompts)
    ids_BT = torch.full((len(prompts), width), pad_id, dtype=torch.long)
    mask_BT = torch.zeros((len(prompts), width), dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids_BT[row, width - len(prompt) :] = torch.as_tensor(prompt, dtype=torch.long)
        mask_BT[row, width - len(prompt) :] = 1
    return ids_BT.to(device), mask_BT.to(device)


def _cut(new_ids: list[int], stop_ids: list[int], tokenizer: Any) -> Generation:
    """Drop the first stop token and the padding behind it."""
    end = next((place for place, token in enumerate(new_ids) if token in stop_ids), None)
    kept = new_ids[:end]
    text = tokenizer.decode(kept, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return Generation(token_ids=kept, text=text, stopped=end is not None)


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
    if seed is None:
        yield
        return
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
