"""Models on this machine as generators: in memory with transformers, or in vLLM's engine.

Decoder-only models must be padded on the left to generate in batches:

    ids    pad pad pad  a   b      mask   0 0 0 1 1      positions   . . . 0 1
            c   d   e   f   g             1 1 1 1 1                  0 1 2 3 4

The batch is built here and not by the tokenizer, so the tokenizer's padding side does not matter. A model's own
`generation_config` (published models ship sampling temperatures and repetition penalties in it) is set aside while
generating: what is asked for in the call is all that happens.

Shapes: B prompts of a batch, T tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, PreTrainedTokenizerBase

from stepjepa.config.option import Names
from stepjepa.data.tokens import Prompter
from stepjepa.errors import ConfigError, library, said, saying_out_of_memory
from stepjepa.generation.drafting import Drafter
from stepjepa.generation.options import GeneratorOptions
from stepjepa.generation.output import Drafts, Reply, Request, mended, seed_of
from stepjepa.modeling.load import max_positions
from stepjepa.modeling.parts import causal_lm, vocabulary_size

_NAME = Names(GeneratorOptions)
_MODEL = f"--{_NAME.model_name}"
BATCH_SIZE = 16
VLLM_BATCH_SIZE = 256  # vLLM forms its batches itself; this is how many replies are stored at once


class Generation(NamedTuple):
    """One continuation.

    Attributes:
        token_ids: the new tokens, without the stop token and anything after it.
        text: `token_ids` decoded, special tokens left out.
        stopped: True when the model ended by itself, False when `max_new_tokens` cut it off.
        drafts: what came of them; None where nothing was drafted.
    """

    token_ids: list[int]
    text: str
    stopped: bool
    drafts: Drafts | None = None


def generate_batch(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    stop_ids: Sequence[int],
    *,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    suppressed: Sequence[int] = (),
) -> list[Generation]:
    """Continue every prompt of a batch; greedy unless a temperature is given. One `Generation` per prompt, in their order.

    Args:
        model: any Hugging Face causal LM, PEFT models included. Its train/eval mode and generation config are
            restored afterwards.
        tokenizer: decodes the new tokens; its padding side is ignored.
        prompts: token ids of each prompt, none empty, no padding.
        max_new_tokens: upper bound of new tokens per prompt.
        stop_ids: tokens that end a continuation.
        temperature: 0 takes the likeliest token; above 0 samples at this temperature.
        top_p: share of the probability mass to sample from; only with a temperature.
        seed: of the sampling. The global generators are left as they were.
        suppressed: tokens that are never generated.
    """
    pad_id = stop_ids[0] if stop_ids else 0  # masked out in the prompt and cut off after it, so any valid id will do
    sampling: dict[str, Any] = {}
    if temperature:
        sampling = {"do_sample": True, "top_k": 0, _NAME.temperature: temperature, _NAME.top_p: top_p}
    config = GenerationConfig(
        max_new_tokens=max_new_tokens,
        eos_token_id=list(stop_ids) or None,
        pad_token_id=pad_id,
        suppress_tokens=list(suppressed) or None,
        **sampling,
    )
    inner: Any = model
    device = inner.get_input_embeddings().weight.device
    rows = [torch.as_tensor(prompt, dtype=torch.long) for prompt in prompts]
    ids_BT = pad_sequence(rows, True, pad_id, "left")
    mask_BT = pad_sequence([torch.ones_like(row) for row in rows], True, 0, "left")
    random = torch.random.fork_rng([device] if device.type == "cuda" else [])
    with torch.inference_mode(), eval_mode(model), config_set_aside(model, config), random:
        torch.manual_seed(seed)
        output_BT = inner.generate(
            input_ids=ids_BT.to(device),
            attention_mask=mask_BT.to(device),
            generation_config=config,
            synced_gpus=False,  # each process has questions of its own
        )
    return [_generation(tokenizer, new_ids, stop_ids) for new_ids in output_BT[:, ids_BT.shape[1] :].tolist()]


def _generation(
    tokenizer: PreTrainedTokenizerBase, new_ids: list[int], stop_ids: Sequence[int], drafts: Drafts | None = None
) -> Generation:
    ends = [position for position, token in enumerate(new_ids) if token in stop_ids]
    kept = new_ids[: ends[0]] if ends else new_ids
    text: Any = tokenizer.decode(kept, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return Generation(kept, text, bool(ends), drafts)


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


class BatchGenerator(ABC):
    """Answers in batches, which are formed of all requests, longest prompt first. So the same requests with the same batch
    size give the same replies, whether or not the run was interrupted."""

    def __init__(self, prompter: Prompter, batch_size: int, longest_prompt: int | None):
        self.prompter = prompter
        self._batch_size, self._longest_prompt = batch_size, longest_prompt

    def answer(self, requests: Sequence[Request], done: Collection[int]) -> Iterator[list[Reply]]:
        """A batch of replies at a time, after refusals of the prompts for which the model has no room.

        Raises:
            ConfigError: a batch does not fit into memory.
        """
        prompts: dict[int, list[int]] = {}
        refused: list[Reply] = []
        for request in requests:
            ids = self.prompter.ids(request.messages, request.template_kwargs)
            if self._longest_prompt is None or len(ids) <= self._longest_prompt:
                prompts[request.row] = ids
            elif request.row not in done:
                reason = f"the prompt has {len(ids)} tokens, and the model has room for {self._longest_prompt}"
                refused.append(Reply(request.row, "", stopped=False, refused=reason))
        if refused:
            yield refused
        asked = [request for request in requests if request.row in prompts]
        asked.sort(key=lambda request: -len(prompts[request.row]))
        for begin in range(0, len(asked), self._batch_size):
            batch = [request for request in asked[begin : begin + self._batch_size] if request.row not in done]
            if batch:
                yield self._generate(batch, [prompts[request.row] for request in batch])

    @abstractmethod
    def _generate(self, batch: Sequence[Request], prompts: Sequence[list[int]]) -> list[Reply]:
        """The replies to a batch, given the token ids of its prompts."""


class LocalGenerator(BatchGenerator):
    """Generates with a model in memory, also one that is being trained. Each batch is sampled with a seed of its own."""

    def __init__(
        self,
        model: nn.Module,
        prompter: Prompter,
        max_new_tokens: int,
        top_p: float = 1.0,
        batch_size: int = BATCH_SIZE,
        drafter: Drafter | None = None,
    ):
        inner = causal_lm(model)
        limit = max_positions(inner)
        super().__init__(prompter, batch_size, None if limit is None else limit - max_new_tokens)
        self.model = model
        self._drafter = drafter
        self._max_new_tokens, self._top_p = max_new_tokens, top_p
        config = getattr(model, "generation_config", None)
        self._stop_ids = prompter.stop_ids(getattr(config, "eos_token_id", None))
        self._suppressed = prompter.unwritable_ids(vocabulary_size(inner))

    def _generate(self, batch: Sequence[Request], prompts: Sequence[list[int]]) -> list[Reply]:
        lower = f"lower --{_NAME.batch_size} or --{_NAME.max_new_tokens}"
        message = f"out of memory with {len(batch)} questions at once; what is done is kept; {lower}"
        with saying_out_of_memory(message):
            if self._drafter is not None:
                generations = self._drafted(self._drafter, prompts)
            else:
                generations = generate_batch(
                    self.model,
                    self.prompter.tokenizer,
                    prompts,
                    self._max_new_tokens,
                    self._stop_ids,
                    temperature=batch[0].temperature,
                    top_p=self._top_p,
                    seed=seed_of(0, *(request.seed for request in batch)),
                    suppressed=self._suppressed,
                )
        replies = []
        for request, ids, one in zip(batch, prompts, generations, strict=True):
            text = mended(self.prompter.response(one.token_ids, one.text, ids))
            new_tokens = len(one.token_ids) + one.stopped
            replies.append(Reply(request.row, text, one.stopped, len(ids), new_tokens, drafts=one.drafts))
        return replies

    def _drafted(self, drafter: Drafter, prompts: Sequence[list[int]]) -> list[Generation]:
        generations = []
        for prompt in prompts:
            new_ids, drafts = drafter.write(prompt, self._max_new_tokens, self._stop_ids, self._suppressed)
            generations.append(_generation(self.prompter.tokenizer, new_ids, self._stop_ids, drafts))
        return generations


class VllmGenerator(BatchGenerator):
    """Hands requests to vLLM, each with a seed of its own.

    Args:
        model: a Hub id or folder.

    Raises:
        ConfigError: vLLM is not installed, or cannot load the model.
    """

    def __init__(self, model: str, prompter: Prompter, options: GeneratorOptions):
        arguments = {
            "model": model,
            "tokenizer": prompter.tokenizer.name_or_path,
            _NAME.dtype: options.dtype,
            _NAME.seed: options.seed,
            _NAME.trust_remote_code: options.trust_remote_code,
            _NAME.tensor_parallel_size: options.tensor_parallel_size,
        }
        vllm = library("vllm", "vllm")
        try:
            self._llm = vllm.LLM(**arguments, **(options.vllm_options or {}))
        except Exception as error:
            raise ConfigError(f"{_MODEL} {model}: vLLM cannot load it ({said(error)})") from None
        limits = self._llm.llm_engine.model_config
        super().__init__(prompter, options.batch_size or VLLM_BATCH_SIZE, limits.max_model_len - 1)
        self._params = vllm.SamplingParams
        self._sampling = {
            _NAME.top_p: options.top_p,
            "max_tokens": options.max_new_tokens,
            "stop_token_ids": prompter.stop_ids(None),  # vLLM adds the tokens that the model itself names
            "logit_bias": dict.fromkeys(prompter.unwritable_ids(limits.get_vocab_size()), -100.0) or None,
        }

    def _generate(self, batch: Sequence[Request], prompts: Sequence[list[int]]) -> list[Reply]:
        params = [self._params(temperature=one.temperature, seed=one.seed, **self._sampling) for one in batch]
        inputs = [{"prompt_token_ids": ids} for ids in prompts]
        outputs = self._llm.generate(inputs, params, use_tqdm=False)
        replies = []
        for request, ids, output in zip(batch, prompts, outputs, strict=True):
            answer = output.outputs[0]
            written = list(answer.token_ids)
            text = mended(self.prompter.response(written, answer.text, ids))
            stopped = answer.finish_reason != "length"
            replies.append(Reply(request.row, text, stopped, len(ids), len(written)))
        return replies
