"""The model in memory as a generator, in batches that give each prompt what it would get alone; and which model it is.

Decoder-only models must be padded on the left to generate in batches:

    ids    pad pad pad  a   b      mask   0 0 0 1 1      positions   . . . 0 1
            c   d   e   f   g             1 1 1 1 1                  0 1 2 3 4

The batch is built here and not by the tokenizer, so the tokenizer's padding side does not matter. A model's own
`generation_config` (published models ship sampling temperatures and repetition penalties in it) is set aside while
generating: what is asked for in the call is all that happens.

Shapes: B prompts of a batch, T tokens.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from stepjepa.config.option import Names, options_of
from stepjepa.data.prompts import recorded_ending
from stepjepa.data.tokens import Prompter
from stepjepa.errors import ConfigError
from stepjepa.generation import Generator, Reply, Request, mended, seed_of, with_room
from stepjepa.generation.options import OVERWRITE, GeneratorOptions
from stepjepa.generation.vllm import VllmGenerator
from stepjepa.modeling.export import export_problem
from stepjepa.modeling.gguf import GGUF_SUFFIX, gguf_file
from stepjepa.modeling.load import (
    check_local,
    is_preset,
    load_adapter,
    load_model,
    load_tokenizer,
    max_positions,
    quantization,
)
from stepjepa.modeling.parts import causal_lm, vocabulary_size
from stepjepa.utils.failures import saying_out_of_memory
from stepjepa.utils.files import read_object

_NAME = Names(GeneratorOptions)
MODEL = f"--{_NAME.model_name}"
BATCH_SIZE = 16
_ADAPTER = "adapter_config.json"
Batch = tuple[list[Request], list[list[int]]]  # with the token ids of their prompts


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
    # By the bounds of the options of these names.
    given = (max_new_tokens, _NAME.max_new_tokens), (batch_size, _NAME.batch_size), (temperature, _NAME.temperature)
    for value, name in (*given, (top_p, _NAME.top_p)):
        options_of(GeneratorOptions)[name].check(value)
    stop = tokenizer.eos_token_id if eos_token_ids is None else eos_token_ids
    stop_ids = [] if stop is None else [stop] if isinstance(stop, int) else list(stop)
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
    random = nullcontext() if seed is None else torch.random.fork_rng([device] if device.type == "cuda" else [])
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
            for index, new_ids in zip(chosen, output_BT[:, ids_BT.shape[1] :].tolist(), strict=True):
                end = next((position for position, token in enumerate(new_ids) if token in stop_ids), None)
                kept = new_ids[:end]
                text: Any = tokenizer.decode(kept, skip_special_tokens=True, clean_up_tokenization_spaces=False)
                results[index] = Generation(kept, text, stopped=end is not None)
    return [results[index] for index in range(len(prompts))]


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
        self._max_new_tokens, self._top_p, self._batch_size = max_new_tokens, top_p, batch_size
        config = getattr(model, "generation_config", None)
        self._stop_ids = prompter.stop_ids(getattr(config, "eos_token_id", None))
        self._suppressed = prompter.unwritable_ids(vocabulary_size(causal_lm(model)))
        limit = max_positions(causal_lm(model))
        self._longest_prompt = None if limit is None else limit - max_new_tokens

    def answer(self, requests: Sequence[Request], done: Collection[int]) -> Iterator[list[Reply]]:
        """A batch of replies at a time. Raises ConfigError: a batch does not fit into memory."""
        refused, batches = self.batches(requests, done)
        if refused:
            yield refused
        yield from map(self.generate, batches)

    def batches(self, requests: Sequence[Request], done: Collection[int]) -> tuple[list[Reply], list[Batch]]:
        """Refusals, and what else is not done in batches."""
        prompts, refused = with_room(self.prompter, requests, self._longest_prompt, done)
        batches = list[Batch]()
        order = sorted((one for one in requests if one.row in prompts), key=lambda one: -len(prompts[one.row]))
        for begin in range(0, len(order), self._batch_size):
            batch = [request for request in order[begin : begin + self._batch_size] if request.row not in done]
            if batch:
                batches.append((batch, [prompts[request.row] for request in batch]))
        return refused, batches

    def generate(self, asked: Batch) -> list[Reply]:
        """The replies to a batch. Raises ConfigError: it does not fit into memory."""
        batch, prompts = asked
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


def load_generator(
    place: Place, prompter: Prompter, options: GeneratorOptions, no_lora: bool = False
) -> tuple[Generator, str]:
    """What answers with a model by the options, and a phrase that describes it. Raises ConfigError: it cannot be loaded."""
    if options.backend == "vllm":
        generator = VllmGenerator(place, prompter, options, no_lora)
        return generator, generator.description
    model, description = load_place(place, prompter.tokenizer, options, no_lora)
    size = options.batch_size or BATCH_SIZE
    local = LocalGenerator(model, prompter, options.max_new_tokens, options.top_p, size)
    return local, f"{description}, batches of {size}"


@dataclass(frozen=True)
class Place:
    """Where a model is.

    Attributes:
        name: as the user gave it.
        folder: the local folder, None for a Hub id.
        base: of an adapter, the Hub id or folder of its base.
        adapter: PEFT's configuration of it.
    """

    name: str
    folder: Path | None
    base: str | None = None
    adapter: dict[str, Any] = field(default_factory=dict)

    @property
    def run_folder(self) -> Path | None:
        """The folder with the records of the training: its own, or that of the run whose checkpoint it is."""
        folder = self.folder
        if folder is None or not folder.resolve().name.startswith("checkpoint-") or (folder / "run.json").exists():
            return folder
        return folder.resolve().parent

    @property
    def settings(self) -> dict[str, Any]:
        """The options of its training, as far as they are recorded."""
        found = None if self.run_folder is None else read_object(self.run_folder / "run.json").get("settings")
        return found if isinstance(found, dict) else {}

    @property
    def trained_ending(self) -> str | None:
        """See `data.prompts.trained_ending`."""
        reports = {} if self.run_folder is None else read_object(self.run_folder / "data_report.json")
        return recorded_ending(reports)

    def prompter(self, tokenizer: PreTrainedTokenizerBase, options: GeneratorOptions) -> Prompter:
        """What asks the model: as the options say, and where they do not, as it was trained."""
        kwargs = options.chat_template_kwargs
        if kwargs is None and not options.chat_template and not options.plain:
            kwargs = self.settings.get(_NAME.chat_template_kwargs)
        how = options.chat_template, options.plain, kwargs, options.prompt_from
        return Prompter(tokenizer, *how, self.trained_ending)


def find_model(name: str) -> Place:
    """Look at what `name` is. Raises ConfigError: nothing that could be a model."""
    if is_preset(name):
        raise ConfigError(f"{MODEL} {name}: a preset has random weights; name a trained model, a folder or a Hub id")
    folder = Path(os.path.expanduser(name))
    if folder.suffix == GGUF_SUFFIX and folder.is_file():
        return Place(name, None)
    if folder.is_file():
        raise ConfigError(f"{MODEL} {name}: is a file; give the model's folder, or a GGUF file")
    if not folder.is_dir():
        if folder.is_absolute() or name.startswith((".", "~")) or len(folder.parts) > 2:
            raise ConfigError(f"{MODEL} {name}: no such folder")
        check_local(name)
        return Place(name, None)
    problem = export_problem(folder)
    if problem is not None:
        raise ConfigError(
            f"{MODEL} {name}: {problem}; finish the run: its own command with --resume_from_checkpoint true; or give "
            "one of its checkpoints"
        )
    if (folder / _ADAPTER).is_file():
        adapter = read_object(folder / _ADAPTER)
        base = adapter.get("base_model_name_or_path")
        if not base:
            raise ConfigError(f"{MODEL} {name}: {_ADAPTER} names no base model; write the adapter merged")
        near = folder / str(base)
        return Place(name, folder, str(near) if near.is_dir() and not Path(base).is_dir() else str(base), adapter)
    if not (folder / "config.json").is_file() and gguf_file(name) is None:
        checkpoints = sorted(folder.glob("checkpoint-*"), key=lambda path: (len(path.name), path.name))
        hint = f"; the run has not ended: give {checkpoints[-1]}" if checkpoints else ""
        raise ConfigError(f"{MODEL} {name}: no model in this folder (neither config.json nor {_ADAPTER}){hint}")
    return Place(name, folder)


def load_place_tokenizer(place: Place, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    """The tokenizer in the model's folder; for an adapter without one that of its base.

    Raises:
        ConfigError: it cannot be loaded.
    """
    disable_progress_bar()  # of loading, which begins here
    folder = place.folder
    own = folder is None or place.base is None or (folder / "tokenizer_config.json").is_file()
    return load_tokenizer(place.name if own else str(place.base), trust_remote_code=trust_remote_code)


def load_place(
    place: Place, tokenizer: PreTrainedTokenizerBase, options: GeneratorOptions, no_lora: bool = False
) -> tuple[nn.Module, str]:
    """The model on the GPU, if there is one, and a phrase that describes it; of an adapter with `no_lora` its base alone.

    Raises:
        ConfigError: it cannot be loaded, or does not fit.
    """
    name, kind = place.base or place.name, ""
    model: Any
    try:
        same = (_NAME.dtype, _NAME.attn_implementation, _NAME.trust_remote_code)
        given: Any = {one: getattr(options, one) for one in same}
        model = load_model(name, tokenizer, quantized=quantization(place.settings), **given)
    except ConfigError as error:
        raise error if place.base is None else ConfigError(f"the base of the adapter {place.name}: {error}") from None
    if place.base is not None and no_lora:
        kind = f"the base {name} alone; "
    elif place.base is not None:
        model = load_adapter(model, str(place.folder), f"{MODEL} {place.name}", name)
        kind = f"adapter on {name}; "
    model.eval()
    device, advice = "cuda" if torch.cuda.is_available() else "cpu", f"--{_NAME.dtype} or another --{_NAME.backend}"
    with saying_out_of_memory(f"{MODEL} {place.name}: does not fit on this GPU; use a smaller {advice}"):
        model.to(device)
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    return model, f"{kind}{model.num_parameters():,} parameters, {dtype} on {device}"
