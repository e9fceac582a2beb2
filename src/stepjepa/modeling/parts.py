"""The parts of a causal LM, whatever their names: its modules, its output head, its sharded weights, and keeping it as it is
while it is tried.

The common head is one matrix, with a scale and a cap that the configuration names; it is used without holding all logits.
Whether it is right is never guessed: `output_head` compares it with the model's own forward on made-up states. What differs
(a dense layer before the matrix, a multiplier of another name) takes the model's own forward at the labelled positions.

FSDP2 shards the weights over the processes: a part of each in this process. While a forward runs, torch puts gathered
weights in their place. What is here for them is the identity for a model that is not sharded.

Shapes: N positions, D width, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import ModelOutput
from transformers.pytorch_utils import Conv1D

from stepjepa.losses.lm import chunk_rows, chunked_cross_entropy_sum, linear_cross_entropy_sum, scaled_logits

_HEAD = "_stepjepa_output_head"  # what was tried once, on the model


def text_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """The part of a model's configuration that is about text (multimodal configurations hold it inside)."""
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def causal_lm(model: nn.Module) -> PreTrainedModel:
    """The Hugging Face causal LM inside a PEFT model, or the model itself.

    Functions that take an `nn.Module` accept either; those that take a `PreTrainedModel` want what this returns.
    """
    inner: Any = model
    return inner.get_base_model() if hasattr(inner, "get_base_model") else inner


def plain_module(module: nn.Module) -> nn.Embedding | nn.Linear:
    """The embedding or output head inside PEFT's wrapper for trained token rows, or the module itself."""
    plain: Any = module
    adapter = getattr(plain, "token_adapter", None)
    return plain if adapter is None else adapter.base_layer


def embedding_rows(model: PreTrainedModel) -> torch.Tensor:
    """(V, D), the weight of the model's input embedding; of trained token rows (PEFT) the values before training, as their
    wrapper copies the matrix each time it is asked for the current ones."""
    return plain_module(model.get_input_embeddings()).weight


def vocabulary_size(model: PreTrainedModel) -> int:
    """V, rows of the model's input embedding."""
    return int(embedding_rows(model).shape[0])


def name_of(model: nn.Module, part: nn.Module | None) -> str:
    """The dotted name of a module inside a model, empty where it is not there."""
    return next((name for name, module in model.named_modules() if module is part), "")


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether a process has a part of a tensor (any shape), as FSDP2 leaves it."""
    return hasattr(tensor, "to_local")


@contextmanager
def forward_as(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Within this context a module has another forward."""
    own = vars(module).get("forward")  # what has replaced that of its class
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if own is not None:
            module.forward = own


def own_forward(model: PreTrainedModel) -> Callable[..., Any]:
    """The forward that came with a causal LM, also where it has learned to take batches."""
    return vars(model).get("_own_forward") or model.forward


def backbone(model: PreTrainedModel) -> nn.Module:
    """The module of a causal LM that returns the states for its output head.

    It goes by the model's `base_model_prefix`; where that names nothing (Llama 4, Mllama), it is the child that holds the
    input embedding.
    """
    named = getattr(model, model.base_model_prefix, None)
    if isinstance(named, nn.Module):
        return named
    embedding = model.get_input_embeddings()
    holders = (child for child in model.children() if any(part is embedding for part in child.modules()))
    return next(holders, model)


def decoder_layers(backbone: nn.Module) -> nn.ModuleList | None:
    """The decoder's layers in order; None where they go by no known name."""
    for owner in (backbone, getattr(backbone, "language_model", None)):
        for name in ("layers", "h", "blocks"):
            layers = getattr(owner, name, None)
            if isinstance(layers, nn.ModuleList) and len(layers):
                return layers
    return None


def has_experts(model: PreTrainedModel) -> bool:
    """Whether the model routes tokens to experts, so that a batch may leave some parameters without a gradient."""
    config = text_config(model.config)
    names = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    return any(getattr(config, key, None) for key in names)


def routed(model: PreTrainedModel) -> nn.Module:
    """What holds the experts, which a few tokens need not reach: the text decoder; a module without parts for none."""
    part = backbone(model)
    decoder = getattr(part, "language_model", None)
    return (decoder if isinstance(decoder, nn.Module) else part) if has_experts(model) else nn.Identity()


def idle_layers(model: PreTrainedModel) -> list[str]:
    """Names of the linear layers of a causal LM that do nothing for plain text: those of towers and their projectors.

    Experts are left out; so is everything where the model does not run.
    """
    embedding, experts = embedding_rows(model), set(routed(model).modules())
    if embedding.device.type == "meta":
        return []
    linears = {name: part for name, part in model.named_modules() if isinstance(part, (nn.Linear, Conv1D))}
    called = {name for name, part in linears.items() if part in experts}
    ids = torch.arange(5, 11, device=embedding.device)[None] % len(embedding)
    try:
        with ExitStack() as hooks, torch.no_grad(), unchanged(model):
            for name, part in linears.items():
                hooks.enter_context(part.register_forward_pre_hook(lambda part, args, name=name: called.add(name)))
            own_forward(model)(input_ids=ids, use_cache=False)
    except Exception:
        return []
    return sorted(linears.keys() - called)


@contextmanager
def unchanged(model: nn.Module, training: bool = False) -> Iterator[None]:
    """Within this context the model is in evaluation (or training) mode; afterwards modes, buffers and the random state are
    as before."""
    modes = {module: module.training for module in model.modules()}
    buffers = [
        (module, name, buffer, buffer.clone() if buffer.is_floating_point() and buffer.numel() < 2**20 else None)
        for module in modes
        for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False)
    ]
    devices = {p.device for p in model.parameters() if p.device.type not in ("cpu", "meta")}
    kind = next(iter(devices)).type if devices else "cuda"
    model.train(training)
    try:
        with torch.random.fork_rng([device.index or 0 for device in devices], device_type=kind):
            yield
    finally:
        model.train(modes[model])  # kernels of the Hub are replaced along with the mode
        for module, mode in modes.items():
            module.training = mode
        for module, name, buffer, value in buffers:
            if value is not None:
                with torch.no_grad():
                    buffer.copy_(value)
            setattr(module, name, buffer)


# From last hidden states to logits


@dataclass(frozen=True)
class OutputHead:
    """How a causal LM turns states into logits.

    Attributes:
        vocabulary: V, entries of the softmax; predictor tokens follow them and never enter.
        scale, softcap: what the model does to its logits.
        plain: the output embedding is one matrix (and a bias) that may be used without calling the module.
        own: the module whose states the model's own forward turns into logits, where that forward is used; `scale`,
            `softcap` and `plain` say nothing then.
    """

    vocabulary: int
    scale: float = 1.0
    softcap: float | None = None
    plain: bool = True
    own: str = ""

    def logits(self, model: PreTrainedModel, states_ND: torch.Tensor) -> torch.Tensor:
        """(N, V) logits of a causal LM for its last hidden states."""
        if self.own:
            return own_logits(model, states_ND, self.own)[..., : self.vocabulary]
        module: Any = model.get_output_embeddings()
        return scaled_logits(module(states_ND)[..., : self.vocabulary], self.scale, self.softcap)

    def loss_sum(
        self,
        model: PreTrainedModel,
        states_ND: torch.Tensor,
        labels_N: torch.Tensor,
        rows: int | None = None,
        token_sums: bool = False,
    ) -> torch.Tensor:
        """Summed cross-entropy () float32 of `states_ND` against `labels_N`.

        Args:
            rows: positions whose logits are held at once; None for as many as memory should bear.
            token_sums: return (3,), see `chunked_cross_entropy_sum`.
        """
        rows = chunk_rows(self.vocabulary) if rows is None else rows
        if self.plain and not self.own:
            module: Any = model.get_output_embeddings()
            limit = 4 * self.vocabulary * rows

            def loss(states_ND: torch.Tensor) -> torch.Tensor:
                weight, bias = module.weight[: self.vocabulary], getattr(plain_module(module), "bias", None)
                bias = None if bias is None else bias[: self.vocabulary]
                return linear_cross_entropy_sum(
                    states_ND, weight, labels_N, bias, self.scale, self.softcap, limit, token_sums
                )

            if not is_sharded(plain_module(module).weight):
                return loss(states_ND)
            with forward_as(module, loss):  # which finds the module's weights whole
                return module(states_ND)  # type: ignore[no-any-return]

        def logits(states_CD: torch.Tensor) -> torch.Tensor:
            return self.logits(model, states_CD)

        return chunked_cross_entropy_sum(logits, states_ND, labels_N, rows, token_sums)

    def most_likely(self, model: PreTrainedModel, states_ND: torch.Tensor) -> torch.Tensor:
        """(N,) int64, the token with the largest logit for each state, chunk by chunk."""
        chunks = states_ND.split(chunk_rows(self.vocabulary))
        return torch.cat([self.logits(model, states_CD).argmax(dim=-1) for states_CD in chunks])


@dataclass
class _Given(ModelOutput):
    """What a backbone returns, made of given states: whatever else a model's forward asks of it is None."""

    last_hidden_state: torch.Tensor | None = None

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def own_logits(model: PreTrainedModel, states_ND: torch.Tensor, part: str) -> torch.Tensor:
    """(N, V) logits by the model's own forward, with the states (N, D) of its module `part` given; V as its head has it.

    Raises:
        ValueError: that forward does not ask this module.
    """
    given = states_ND if len(states_ND) else states_ND.new_zeros(1, states_ND.shape[1])
    ids = torch.zeros(1, len(given), dtype=torch.long, device=given.device)
    asked = list[bool]()

    def answer(*args: Any, **kwargs: Any) -> Any:
        asked.append(True)
        return _Given(last_hidden_state=given[None])

    with forward_as(model.get_submodule(part), answer):
        logits = own_forward(model)(input_ids=ids, use_cache=False).logits[0]
    if not asked:
        raise ValueError(f"the model's forward does not call its {part}")
    return logits if len(states_ND) else logits[:0] + states_ND.sum()


def output_head(model: PreTrainedModel, vocabulary: int) -> OutputHead:
    """The head of a causal LM, tried once: the fast form where it gives the model's own logits, else the model's own.

    Its vocabulary is the given one, or the model's where that is smaller: some embed more tokens than they predict.
    """
    known = vars(model).get(_HEAD)
    if known is None or known[0] != vocabulary:
        known = (vocabulary, _tried(model, vocabulary))
        object.__setattr__(model, _HEAD, known)
    return known[1]


def _tried(model: PreTrainedModel, vocabulary: int) -> OutputHead:
    config, module = text_config(model.config), plain_module(model.get_output_embeddings())
    scale = float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)
    softcap = getattr(config, "final_logit_softcapping", None)
    weight = getattr(module, "weight", None)
    rows = vocabulary if weight is None else min(vocabulary, len(weight))
    plain = OutputHead(rows, plain=type(module) is nn.Linear)
    # Also without the options: a configuration may have those that its class does not read.
    forms = [(scale, softcap), (1.0, softcap), (scale, None), (1.0, None)]
    heads = list(dict.fromkeys(replace(plain, scale=one, softcap=cap) for one, cap in forms))
    if weight is None or weight.device.type == "meta":
        return heads[0]
    # What gives the head its states: the backbone, or a decoder right inside it (OPT).
    part = backbone(model)
    name = name_of(model, part)
    inside = [f"{name}.{child}" for child, _ in part.named_children() if "decoder" in child or "model" in child]
    widths = dict.fromkeys([getattr(config, "hidden_size", weight.shape[-1]), weight.shape[-1]])
    with torch.no_grad(), unchanged(model):
        for source, width in itertools.product([name, *inside] if name else [], widths):
            states_ND = torch.randn(4, width, generator=torch.Generator().manual_seed(0)).to(weight.device, model.dtype)
            candidates = heads
            try:  # logits so large that a cap bends them
                states_ND *= 50 / plain.logits(model, states_ND).float().std().clamp(min=1e-3)
            except Exception:
                candidates = []
            try:
                own = own_logits(model, states_ND, source)[:, :rows]
            except Exception:
                continue  # of another width, or not what the head is given: the start-up trial judges
            equal = (one for one in candidates if difference(one.logits(model, states_ND), own) <= tolerance(model))
            return next(equal, replace(heads[0], own=source))
    return heads[0]


def difference(logits: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative distance of two tensors (N, V) of logits; what softmax does not see, a shift of a whole row, aside."""
    one, other = logits.float(), expected.float()
    return distance(one - one.mean(-1, keepdim=True), other - other.mean(-1, keepdim=True))


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """Of two tensors of any shape, relative to the second."""
    return float((one - other).norm() / other.norm().clamp(min=1e-12))


def compute_dtype(model: PreTrainedModel) -> torch.dtype:
    """The dtype of the model's matrix products: autocast's within its context, else that of the weights."""
    kind = embedding_rows(model).device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else model.dtype


def tolerance(model: PreTrainedModel) -> float:
    """What rounding may make of states and logits, relative to their size: 1e-4 in float32, more in shorter dtypes."""
    dtype, quantized = compute_dtype(model), getattr(model.config, "quantization_config", None)
    if quantized is not None:  # int8 has about the steps of bfloat16
        dtype = quantized.bnb_4bit_compute_dtype if quantized.load_in_4bit else torch.bfloat16
    products = torch.backends.cuda.matmul.fp32_precision
    if products == "none":  # where it is set, the older call may refuse to answer
        products = torch.get_float32_matmul_precision()
    if dtype == torch.float32 and products not in ("ieee", "highest"):  # TF32, for one
        dtype = torch.bfloat16
    return max(1e-4, 8 * torch.finfo(dtype).eps)


# Sharded weights


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This process's part of a tensor (any shape), in the same memory."""
    sharded: Any = tensor
    return sharded.to_local() if is_sharded(tensor) else tensor


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor (any shape). Every process must call it."""
    sharded: Any = tensor
    return sharded.full_tensor() if is_sharded(tensor) else tensor


def like(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """A tensor that every process has whole, sharded as `other` (of the same shape) is."""
    sharded: Any = other
    if not is_sharded(other):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = sharded.device_mesh, sharded.placements
    return distribute_tensor(tensor.to(mesh.device_type), mesh, placements, src_data_rank=None)


def free_gathered(model: nn.Module) -> None:
    """Put the sharded weights back where a pass has left gathered ones."""
    for module in _sharded(model):
        module.reshard()


def _sharded(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if hasattr(module, "reshard")]  # torch may come without its class


@contextmanager
def whole_weights(model: nn.Module, here: bool) -> Iterator[None]:
    """Within this context the parameters of a model that is not called are whole, on the host, where `here` is set. Every
    process must enter it."""
    free_gathered(model)
    places, new_parameters = [], dict[int, nn.Parameter | None]()  # tied parameters stay one
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None or not is_sharded(parameter):
                continue
            if id(parameter) not in new_parameters:
                value = whole(parameter.detach())
                new_parameters[id(parameter)] = nn.Parameter(value.cpu(), parameter.requires_grad) if here else None
            places.append((module, name, parameter))
    try:
        for module, name, parameter in places if here else ():
            module._parameters[name] = new_parameters[id(parameter)]
        yield
    finally:
        for module, name, parameter in places:
            module._parameters[name] = parameter


@contextmanager
def gathered(model: nn.Module, reshard_after_forward: bool = True) -> Iterator[None]:
    """Within this context every process has all weights and may call the model as often as it likes, without gradients;
    `reshard_after_forward` is for afterwards."""
    modules = _sharded(model)
    registered = vars(model).pop("generate", None)  # the Trainer's, which gathers and frees at every call
    for module in modules:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield
    finally:
        for module in modules:
            module.reshard()
            module.set_reshard_after_forward(reshard_after_forward, recurse=False)
        if registered is not None:
            vars(model)["generate"] = registered
