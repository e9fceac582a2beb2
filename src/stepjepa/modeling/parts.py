"""Access to the parts of a causal LM, whatever their names: its modules, output head and sharded weights; and a context in
which tests leave it unchanged.

The common head is one matrix, with a scale and a cap from the configuration; it is applied without holding all logits in
memory at once. Its form is tested, not guessed: `output_head` compares it with the model's own forward on random states. For
any other head (a dense layer before the matrix, a multiplier of another name), the model's own forward runs at the
labelled positions.

FSDP2 shards the weights: each process holds a part of each weight, and torch replaces the parts by gathered weights while
a forward runs. The functions for sharded weights do nothing to a model that is not sharded.

Shapes: N positions, D width, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import ModelOutput
from transformers.pytorch_utils import Conv1D

from stepjepa.losses.lm import (
    chunk_rows,
    chunked_cross_entropy_sum,
    linear_cross_entropy_sum,
    scaled_logits,
)

# The attribute of a model that keeps the result of `output_head`.
_HEAD = "_stepjepa_output_head"


def text_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """The configuration of the text model, which multimodal configurations contain; others are returned as they are."""
    return config.get_text_config()


def causal_lm(model: nn.Module) -> PreTrainedModel:
    """The Hugging Face causal LM inside a PEFT model, or the model itself.

    Functions that take an `nn.Module` accept either; those that take a `PreTrainedModel` need the result of this one.
    """
    inner: Any = model
    return inner.get_base_model() if hasattr(inner, "get_base_model") else inner


def plain_module(module: nn.Module) -> nn.Embedding | nn.Linear:
    """The embedding or output head inside PEFT's wrapper for trained token rows, or the module itself."""
    plain: Any = module
    adapter = getattr(plain, "token_adapter", None)
    return plain if adapter is None else adapter.base_layer


def embedding_rows(model: PreTrainedModel) -> Tensor:
    """(V, D), the weight of the model's input embedding; token rows that PEFT trains have their initial values."""
    # PEFT's wrapper copies the matrix each time its `weight` is read.
    return plain_module(model.get_input_embeddings()).weight


def vocabulary_size(model: PreTrainedModel) -> int:
    """V, the number of rows of the model's input embedding."""
    return len(embedding_rows(model))


def plain_ids(model: PreTrainedModel) -> Tensor:
    """Ids (1, 9) of a short text, on the model's device. Small ids exist in every vocabulary."""
    weight = embedding_rows(model)
    return torch.arange(5, 14, device=weight.device)[None] % len(weight)


def name_of(model: nn.Module, part: nn.Module | None) -> str:
    """The dotted name of a module in a model, empty if it is not part of the model."""
    return next((name for name, module in model.named_modules() if module is part), "")


def is_sharded(tensor: Tensor) -> bool:
    """Whether each process holds only a part of a tensor (any shape), as under FSDP2."""
    return hasattr(tensor, "to_local")


@contextmanager
def forward_as(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Within this context a module has the given forward."""
    # Usually None, since the forward is the class's. An instance has one if something else replaced it.
    original = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if original is not None:
            module.forward = original


def own_forward(model: PreTrainedModel) -> Callable[..., Any]:
    """The original forward of a causal LM, even after `forward.attach_forest_forward`."""
    return vars(model).get("_own_forward") or model.forward


def backbone(model: PreTrainedModel) -> nn.Module:
    """The module of a causal LM that returns the states for its output head.

    The model's `base_model_prefix` names it; if there is no such module (Llama 4, Mllama), it is the child that holds the
    input embedding.
    """
    named = model.base_model
    if named is not model:
        return named
    embedding = model.get_input_embeddings()
    holders = (
        child for child in model.children() if any(part is embedding for part in child.modules())
    )
    return next(holders, model)


def decoder_layers(backbone: nn.Module) -> nn.ModuleList | None:
    """The decoder's layers in order; None if they have no known name."""
    # Multimodal backbones contain the decoder.
    for owner in (backbone, getattr(backbone, "language_model", None)):
        for name in ("layers", "h", "blocks"):
            layers = getattr(owner, name, None)
            if isinstance(layers, nn.ModuleList) and len(layers):
                return layers
    return None


def has_experts(model: PreTrainedModel) -> bool:
    """Whether the model routes tokens to experts, so that some parameters may get no gradient from a batch."""
    config = text_config(model.config)
    names = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    return any(getattr(config, key, None) for key in names)


def routed(model: PreTrainedModel) -> nn.Module:
    """The module with the experts, which is the text decoder; an empty module if there are no experts."""
    if not has_experts(model):
        return nn.Identity()
    part = backbone(model)
    return getattr(part, "language_model", part)


def idle_layers(model: PreTrainedModel) -> list[str]:
    """Names of the linear layers of a causal LM that plain text does not use: those of towers and their projectors.

    Experts are never listed. The list is empty if the model does not run.
    """
    ids = plain_ids(model)
    if ids.is_meta:
        return []
    linears = {
        name: part for name, part in model.named_modules() if isinstance(part, (nn.Linear, Conv1D))
    }
    # A few tokens do not reach every expert, so experts count as called.
    experts = set(routed(model).modules())
    called = {name for name, part in linears.items() if part in experts}
    try:
        with ExitStack() as hooks, torch.no_grad(), unchanged(model):
            for name, part in linears.items():
                hooks.enter_context(
                    part.register_forward_pre_hook(lambda part, args, name=name: called.add(name))
                )
            own_forward(model)(input_ids=ids, use_cache=False)
    except Exception:
        return []
    return sorted(linears.keys() - called)


@contextmanager
def unchanged(model: nn.Module, training: bool = False) -> Iterator[None]:
    """Within this context the model is in evaluation (or training) mode; on exit, modes, buffers and random state are
    restored."""
    modes = {module: module.training for module in model.modules()}
    # A forward may write into a buffer or replace it. Small floating point buffers are copied, and their values restored; of
    # others only the object is restored.
    buffers = [
        (
            module,
            name,
            buffer,
            buffer.clone() if buffer.is_floating_point() and buffer.numel() < 2**20 else None,
        )
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
        # Setting the mode of the whole model also switches its Hub kernels; then each module gets its own mode back.
        model.train(modes[model])
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
        vocabulary: V, entries of the softmax; predictor tokens come after them and never enter it.
        scale, softcap: factor and cap of the logits.
        plain: the output embedding is one matrix (and a bias) that may be used without calling the module.
        own: if not empty, logits are computed by the model's own forward, in which the states are the output of the module
            of this name; `scale`, `softcap` and `plain` are ignored then.
    """

    vocabulary: int
    scale: float = 1.0
    softcap: float | None = None
    plain: bool = True
    own: str = ""

    def logits(self, model: PreTrainedModel, states_ND: Tensor) -> Tensor:
        """(N, V) logits of a causal LM for its last hidden states."""
        if self.own:
            return own_logits(model, states_ND, self.own)[..., : self.vocabulary]
        module: Any = model.get_output_embeddings()
        return scaled_logits(module(states_ND)[..., : self.vocabulary], self.scale, self.softcap)

    def loss_sum(
        self,
        model: PreTrainedModel,
        states_ND: Tensor,
        labels_N: Tensor,
        rows: int | None = None,
        token_sums: bool = False,
    ) -> Tensor:
        """Summed cross-entropy () float32 of `states_ND` against `labels_N`.

        Args:
            rows: number of positions whose logits are held at once; None for `chunk_rows`.
            token_sums: return (3,), see `chunked_cross_entropy_sum`.
        """
        rows = rows or chunk_rows(self.vocabulary)
        if self.plain and not self.own:
            module: Any = model.get_output_embeddings()

            def loss(states_ND: Tensor) -> Tensor:
                weight = module.weight[: self.vocabulary]
                bias = getattr(plain_module(module), "bias", None)
                bias = None if bias is None else bias[: self.vocabulary]
                return linear_cross_entropy_sum(
                    states_ND, weight, labels_N, bias, self.scale, self.softcap, rows, token_sums
                )

            if not is_sharded(plain_module(module).weight):
                return loss(states_ND)
            # FSDP gathers the module's weights only around a call of the module.
            with forward_as(module, loss):
                return module(states_ND)  # type: ignore[no-any-return]

        logits = partial(self.logits, model)
        return chunked_cross_entropy_sum(logits, states_ND, labels_N, rows, token_sums)

    def most_likely(self, model: PreTrainedModel, states_ND: Tensor) -> Tensor:
        """(N,) int64, the token with the largest logit for each state, computed in chunks."""
        chunks = states_ND.split(chunk_rows(self.vocabulary))
        return torch.cat([self.logits(model, states_CD).argmax(dim=-1) for states_CD in chunks])


@dataclass
class _BackboneOutput(ModelOutput):
    """Stands in for the output of a backbone, with the given states; any other attribute is None."""

    last_hidden_state: Tensor | None = None

    def __getattr__(self, name: str) -> None:
        # Called only for missing attributes; Python looks up special ones when it copies.
        if name.startswith("__"):
            raise AttributeError(name)


def own_logits(model: PreTrainedModel, states_ND: Tensor, part: str) -> Tensor:
    """(N, V) logits of the model's own forward, with states (N, D) as the output of its module `part`; V as in its head.

    Raises:
        ValueError: the forward does not call this module.
    """
    # Some forwards fail without a position, so an empty input becomes one position, which is cut off again.
    given = states_ND if len(states_ND) else states_ND.new_zeros(1, states_ND.shape[1])
    ids = torch.zeros(1, len(given), dtype=torch.long, device=given.device)
    calls = list[bool]()

    def return_given(*args: Any, **kwargs: Any) -> Any:
        calls.append(True)
        return _BackboneOutput(last_hidden_state=given[None])

    with forward_as(model.get_submodule(part), return_given):
        logits = own_forward(model)(input_ids=ids, use_cache=False).logits[0]
    if not calls:
        raise ValueError(f"the model's forward does not call its {part}")
    # The empty sum connects the empty result to the graph of the states.
    return logits if len(states_ND) else logits[:0] + states_ND.sum()


def output_head(model: PreTrainedModel, vocabulary: int) -> OutputHead:
    """The head of a causal LM, tested once: the fast form if it equals the model's own logits, else the model's own forward.

    Its vocabulary is the given one, or that of the model if smaller: some models embed more tokens than they predict.
    """
    known = vars(model).get(_HEAD)
    if known is None or known[0] != vocabulary:
        known = (vocabulary, _try_head(model, vocabulary))
        object.__setattr__(model, _HEAD, known)
    return known[1]


def _try_head(model: PreTrainedModel, vocabulary: int) -> OutputHead:
    """The head that the configuration describes if it agrees with the model's own forward; else that forward."""
    config, module = text_config(model.config), plain_module(model.get_output_embeddings())
    multiplier = getattr(config, "logit_scale", None) or 1.0
    scale = multiplier / (getattr(config, "logits_scaling", None) or 1.0)
    softcap = getattr(config, "final_logit_softcapping", None)
    weight = getattr(module, "weight", None)
    rows = vocabulary if weight is None else min(vocabulary, len(weight))
    head = OutputHead(rows, scale, softcap, plain=type(module) is nn.Linear)
    # Without weights in this process there is nothing to compare.
    if weight is None or weight.device.type == "meta":
        return head
    # The states come from the backbone, or from a decoder inside it (OPT).
    part = backbone(model)
    name = name_of(model, part)
    inside = [
        f"{name}.{child}"
        for child, _ in part.named_children()
        if "decoder" in child or "model" in child
    ]
    widths = dict.fromkeys([getattr(config, "hidden_size", weight.shape[-1]), weight.shape[-1]])
    with torch.no_grad(), unchanged(model):
        for source, width in itertools.product([name, *inside] if name else [], widths):
            states_ND = torch.randn(4, width, generator=torch.Generator().manual_seed(0)).to(
                weight.device, model.dtype
            )
            # The logits must be so large that a cap changes them. This fails for a head of another width.
            with suppress(Exception):
                plain_logits = replace(head, scale=1.0, softcap=None).logits(model, states_ND)
                states_ND *= 50 / plain_logits.float().std().clamp(min=1e-3)
            try:
                expected = own_logits(model, states_ND, source)[:, :rows]
            # Another width, or not the source of the head's states. If nothing fits, the start-up trial reports it.
            except Exception:
                continue
            with suppress(Exception):
                if difference(head.logits(model, states_ND), expected) <= tolerance(model):
                    return head
            return replace(head, own=source)
    return head


def difference(logits: Tensor, expected: Tensor) -> float:
    """Relative distance of two tensors (N, V) of logits, apart from a shift of a whole row, which softmax ignores."""
    logits, expected = logits.float(), expected.float()
    return distance(
        logits - logits.mean(-1, keepdim=True), expected - expected.mean(-1, keepdim=True)
    )


def distance(tensor: Tensor, expected: Tensor) -> float:
    """Distance of two tensors of any shape, relative to the norm of the second."""
    return float((tensor - expected).norm() / expected.norm().clamp(min=1e-12))


def compute_dtype(model: PreTrainedModel) -> torch.dtype:
    """The dtype of the model's matrix products: that of autocast within its context, else that of the weights."""
    kind = embedding_rows(model).device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else model.dtype


def tolerance(model: PreTrainedModel) -> float:
    """The relative rounding error to allow in states and logits: 1e-4 in float32, more in lower-precision dtypes."""
    dtype, quantized = compute_dtype(model), getattr(model.config, "quantization_config", None)
    # The steps of int8 are about as coarse as those of bfloat16.
    if quantized is not None:
        dtype = quantized.bnb_4bit_compute_dtype if quantized.load_in_4bit else torch.bfloat16
    products = torch.backends.cuda.matmul.fp32_precision
    # The older setting, which torch refuses to read after the newer one was set.
    if products == "none":
        products = torch.get_float32_matmul_precision()
    # TF32 keeps ten bits of the mantissa.
    if dtype == torch.float32 and products not in ("ieee", "highest"):
        dtype = torch.bfloat16
    return max(1e-4, 8 * torch.finfo(dtype).eps)


# Sharded weights


def local(tensor: Tensor) -> Tensor:
    """This process's part of a tensor (any shape), sharing its memory."""
    sharded: Any = tensor
    return sharded.to_local() if is_sharded(tensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """The complete tensor (any shape). Every process must call this."""
    sharded: Any = tensor
    return sharded.full_tensor() if is_sharded(tensor) else tensor


def like(tensor: Tensor, other: Tensor) -> Tensor:
    """Shard a tensor, of which every process has all values, like `other` (of the same shape)."""
    sharded: Any = other
    if not is_sharded(other):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = sharded.device_mesh, sharded.placements
    # No source rank: every process takes its part from its copy, without communication.
    return distribute_tensor(tensor.to(mesh.device_type), mesh, placements, src_data_rank=None)


def free_gathered(model: nn.Module) -> None:
    """Free the gathered weights that a forward has left, so that the sharded ones are in their place again."""
    for module in _sharded(model):
        module.reshard()


def _sharded(model: nn.Module) -> list[Any]:
    # Not tested by class, which torch lacks if it was built without distributed support.
    return [module for module in model.modules() if hasattr(module, "reshard")]


@contextmanager
def whole_weights(model: nn.Module, here: bool) -> Iterator[None]:
    """Within this context the parameters of a model are complete and on the host, in processes with `here` set. The model
    must not be called. Every process must enter the context."""
    free_gathered(model)
    places = []
    # Keyed by the sharded parameter, so that tied parameters stay tied and are gathered once.
    new_parameters = dict[int, nn.Parameter | None]()
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None or not is_sharded(parameter):
                continue
            if id(parameter) not in new_parameters:
                # A collective operation, in which processes that drop the value take part too.
                value = whole(parameter.detach())
                new_parameters[id(parameter)] = (
                    nn.Parameter(value.cpu(), parameter.requires_grad) if here else None
                )
            places.append((module, name, parameter))
    try:
        for module, name, parameter in places if here else ():
            module._parameters[name] = new_parameters[id(parameter)]
        yield
    finally:
        for module, name, parameter in places:
            module._parameters[name] = parameter


@contextmanager
def gathered(model: nn.Module, reshard_after_forward: bool) -> Iterator[None]:
    """Within this context every process has all weights and may call the model any number of times, without gradients.

    `reshard_after_forward` is the setting of the modules after the context.
    """
    modules = _sharded(model)
    # The Trainer registers a `generate` that gathers and frees the weights at every call.
    registered = vars(model).pop("generate", None)
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
