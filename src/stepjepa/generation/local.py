"""Models on this machine as generators: in memory with transformers, or in vLLM's engine.

Decoder-only models must be padded on the left to generate in batches:

    ids    pad pad pad  a   b      mask   0 0 0 1 1      positions   . . . 0 1
            c   d   e   f   g             1 1 1 1 1                  0 1 2 3 4

The batch is built here and not by the tokenizer, so the tokenizer's padding side does not matter. During generation, the
model's own `generation_config` is replaced, because published models ship it with sampling temperatures and repetition
penalties: only the arguments of the call count.

Shapes: B prompts of a batch, T tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig

from stepjepa.config.option import Names
from stepjepa.data.tokens import Prompter
from stepjepa.errors import ConfigError, library, said, saying_out_of_memory
from stepjepa.generation.drafting import Drafter, up_to_stop
from stepjepa.generation.options import BATCH_SIZE, GeneratorOptions
from stepjepa.generation.output import Drafts, Reply, Request, mended, seed_of
from stepjepa.modeling.load import max_positions
from stepjepa.modeling.parts import causal_lm, embedding_rows, vocabulary_size

_NAME = Names(GeneratorOptions)
_MODEL = f"--{_NAME.model_name}"


def generate_batch(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    stop_ids: Sequence[int],
    *,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    suppressed: Sequence[int] = (),
) -> list[list[int]]:
    """Continue every prompt of a batch, greedily unless a temperature is given.

    Args:
        model: any Hugging Face causal LM, PEFT models included. Its train/eval mode and generation config are
            restored afterwards.
        prompts: token ids of each prompt, at least one, without padding.
        max_new_tokens: upper bound of new tokens per prompt.
        stop_ids: tokens that end a continuation.
        temperature: 0 takes the likeliest token; above 0 samples at this temperature.
        top_p: share of the probability mass to sample from; only with a temperature.
        seed: seed of the sampling. The global random generators are restored afterwards.
        suppressed: tokens that are never generated.

    Returns:
        The new tokens of each prompt, including the one that ends them.
    """
    # Padding is masked in the prompt and removed after the answer, so any valid id will do.
    pad_id = stop_ids[0] if stop_ids else 0
    # top_k 0 turns off a default of transformers, which samples from the 50 likeliest tokens.
    sampling: dict[str, Any] = {}
    if temperature:
        sampling = {
            "do_sample": True,
            "top_k": 0,
            _NAME.temperature: temperature,
            _NAME.top_p: top_p,
        }
    config = GenerationConfig(
        eos_token_id=list(stop_ids) or None,
        pad_token_id=pad_id,
        suppress_tokens=list(suppressed) or None,
        max_new_tokens=max_new_tokens,
        **sampling,
    )
    device = embedding_rows(causal_lm(model)).device
    rows = [torch.as_tensor(prompt, dtype=torch.long) for prompt in prompts]
    ids_BT = pad_sequence(rows, True, pad_id, "left")
    mask_BT = pad_sequence([torch.ones_like(row) for row in rows], True, 0, "left")
    causal: Any = model
    random = torch.random.fork_rng([device] if device.type == "cuda" else [])
    with torch.inference_mode(), eval_mode(model), config_set_aside(model, config), random:
        torch.manual_seed(seed)
        # Each process answers different questions, so none may wait for the steps of another.
        output_BT = causal.generate(
            input_ids=ids_BT.to(device),
            attention_mask=mask_BT.to(device),
            generation_config=config,
            synced_gpus=False,
        )
    new_ids = output_BT[:, ids_BT.shape[1] :].tolist()
    return [up_to_stop(ids, stop_ids) for ids in new_ids]


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode within this context; afterwards every module has its previous mode."""
    # The mode is stored per module, because parts of a model may be in evaluation mode during training.
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def config_set_aside(model: nn.Module, config: GenerationConfig) -> Iterator[None]:
    """Use only this generation config within this context; afterwards the model's own is restored."""
    # `generate` fills every value that the call leaves open from the model's own generation config. PEFT
    # keeps one on the wrapper and one on the model inside.
    owners: list[Any] = [
        module for module in model.modules() if "generation_config" in vars(module)
    ]
    own_configs = [module.generation_config for module in owners]
    for module in owners:
        module.generation_config = config
    try:
        yield
    finally:
        for module, own_config in zip(owners, own_configs, strict=True):
            module.generation_config = own_config


class BatchGenerator(ABC):
    """Answers in batches, formed from all requests by the length of the prompt, the longest first.

    Batches do not depend on which requests are already done, so an interrupted run gives the same replies when it resumes.
    """

    def __init__(self, prompter: Prompter, batch_size: int, longest_prompt: int | None):
        self.prompter = prompter
        self._batch_size, self._longest_prompt = batch_size, longest_prompt

    def answer(self, requests: Sequence[Request], done: Collection[int]) -> Iterator[list[Reply]]:
        """Yield refusals of prompts that are too long for the model, then the replies batch by batch.

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
        # Similar lengths need little padding. If a batch does not fit into memory, the first batch shows it.
        accepted = [request for request in requests if request.row in prompts]
        accepted.sort(key=lambda request: -len(prompts[request.row]))
        for begin in range(0, len(accepted), self._batch_size):
            batch = [
                request
                for request in accepted[begin : begin + self._batch_size]
                if request.row not in done
            ]
            if batch:
                yield list(self._generate(batch, [prompts[request.row] for request in batch]))

    @abstractmethod
    def _generate(self, batch: Sequence[Request], prompts: Sequence[list[int]]) -> Iterator[Reply]:
        """Answer a batch, given the token ids of its prompts."""


class LocalGenerator(BatchGenerator):
    """Generates with a model in memory, which may be in training. A batch's seed is derived from its requests' seeds."""

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

    def _generate(self, batch: Sequence[Request], prompts: Sequence[list[int]]) -> Iterator[Reply]:
        message = (
            f"out of memory with {len(batch)} questions at once; completed work is kept; lower --{_NAME.batch_size} or "
            f"--{_NAME.max_new_tokens}"
        )
        answers: list[tuple[list[int], Drafts | None]]
        with saying_out_of_memory(message):
            if self._drafter is not None:
                limits = self._max_new_tokens, self._stop_ids, self._suppressed
                answers = [self._drafter.write(prompt, *limits) for prompt in prompts]
            else:
                outputs = generate_batch(
                    self.model,
                    prompts,
                    self._max_new_tokens,
                    self._stop_ids,
                    temperature=batch[0].temperature,
                    top_p=self._top_p,
                    seed=seed_of(0, *(request.seed for request in batch)),
                    suppressed=self._suppressed,
                )
                answers = [(new_ids, None) for new_ids in outputs]
        tokenizer = self.prompter.tokenizer
        for request, ids, (new_ids, drafts) in zip(batch, prompts, answers, strict=True):
            stopped = new_ids[-1] in self._stop_ids
            kept = new_ids[:-1] if stopped else new_ids
            decoded: Any = tokenizer.decode(
                kept, skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
            text = mended(self.prompter.response(kept, decoded, ids))
            yield Reply(request.row, text, stopped, len(ids), len(new_ids), drafts=drafts)


class VllmGenerator(BatchGenerator):
    """Generates with vLLM, with a seed for each request.

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
        # A prompt must leave room for at least one new token.
        limits = self._llm.llm_engine.model_config
        super().__init__(prompter, options.questions_per_batch, limits.max_model_len - 1)
        self._params = vllm.SamplingParams
        self._sampling = {
            _NAME.top_p: options.top_p,
            "max_tokens": options.max_new_tokens,
            # vLLM adds the stop tokens of the model's generation config.
            "stop_token_ids": prompter.stop_ids(None),
            # -100 is the lowest bias of OpenAI's API, and excludes a token in practice.
            "logit_bias": dict.fromkeys(prompter.unwritable_ids(limits.get_vocab_size()), -100.0)
            or None,
        }

    def _generate(self, batch: Sequence[Request], prompts: Sequence[list[int]]) -> Iterator[Reply]:
        params = [
            self._params(temperature=request.temperature, seed=request.seed, **self._sampling)
            for request in batch
        ]
        inputs = [{"prompt_token_ids": ids} for ids in prompts]
        outputs = self._llm.generate(inputs, params, use_tqdm=False)
        for request, ids, output in zip(batch, prompts, outputs, strict=True):
            answer = output.outputs[0]
            new_ids = list(answer.token_ids)
            text = mended(self.prompter.response(new_ids, answer.text, ids))
            stopped = answer.finish_reason != "length"
            yield Reply(request.row, text, stopped, len(ids), len(new_ids))
