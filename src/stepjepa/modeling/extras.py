"""What training adds to a causal LM: predictor tokens (names, ids, order and rows), a head, the objective's modules, and the
target encoder.

The ids of the K predictor tokens are V .. V+K-1, where V is the number of rows of the model's input embedding. Their rows
are a separate module; the embedding is never resized. In the forward of a batch, a hook on the embedding inserts the rows at
those ids. Rows, head and modules are one submodule of the model, so that optimizer, DDP, FSDP and autocast treat them like
any weight. The model's state dict omits them, so `save_pretrained` writes the plain model. Checkpoints and the export write
them next to it, to `PREDICTORS_FILE`.

The EMA target encoder is updated after every optimizer step, ``shadow <- m * shadow + (1 - m) * weight``; m follows half a
cosine over the training (BYOL, arXiv:2006.07733, Section 3.2; I-JEPA, arXiv:2301.08243). The frozen one keeps the initial
weights. A separate model may encode the targets instead.

Shapes: R rows of a batch, T tokens, K predictors, G groups, D width, P pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from stepjepa.data.tokens import kept_predictors
from stepjepa.errors import ConfigError, said
from stepjepa.modeling.load import check_finite
from stepjepa.modeling.parts import (
    causal_lm,
    embedding_rows,
    free_gathered,
    is_sharded,
    like,
    local,
    plain_module,
    vocabulary_size,
    whole,
    whole_weights,
)
from stepjepa.objectives.options import EMA, FROZEN, EMAOptions, PredictorOptions
from stepjepa.utils.files import AnyPath, replacing

PREDICTORS_FILE = "predictors.safetensors"
EMA_FILE = "target_encoder.safetensors"
# Names in `PREDICTORS_FILE`, or prefixes of names.
ROWS, HEAD, OBJECTIVE = "predictors.weight", "head.", "objective."
# The key of the groups in its metadata. Files of earlier versions do not have it; they have one group.
_GROUPS = "groups"
# The attributes of a model that hold the submodule and the target encoder.
_EXTRAS = "jepa"
_ENCODER = "_stepjepa_target_encoder"


def predictor_names(count: int, groups: Sequence[int] = (1,)) -> list[str]:
    """``<|predictor_1|>`` .. ``<|predictor_K|>``; with several groups ``<|predictor_g_k|>``, group by group."""
    parts = [""] if len(groups) == 1 else [f"{group}_" for group in groups]
    return [f"<|predictor_{part}{number}|>" for part in parts for number in range(1, count + 1)]


def placed_predictors(
    ids: Sequence[int], options: PredictorOptions, groups: int
) -> tuple[int, ...]:
    """The ids of the K predictors of every group in the order in which they follow a source, then any further ids (that of
    the mask token)."""
    predictors = options.predictors or 0
    # With `same_predictor`, a group has one id, which is repeated K times.
    size = min(predictors, 1) if options.same_predictor else predictors
    times = predictors if options.same_predictor else 1
    placed: list[int] = []
    for group in range(groups):
        in_group = list(ids[group * size : (group + 1) * size]) * times
        if options.predictor_order == "descending":
            in_group.reverse()
        placed += in_group
    return (*placed, *ids[groups * size :])


def known_predictors(
    tokenizer: PreTrainedTokenizerBase | None, vocabulary: int, names: Sequence[str]
) -> list[int]:
    """Ids of the predictor tokens `names` if the tokenizer has all of them, with rows in the model's embedding; else an
    empty list."""
    known = {} if tokenizer is None else kept_predictors(tokenizer)
    ids = [known.get(name, vocabulary) for name in names]
    return ids if all(index < vocabulary for index in ids) else []


class PredictorRows(nn.Module):
    """The rows of the predictor tokens.

    Args:
        weight_KD: (K, D), the initial rows, group by group; trained in their dtype.
        first: V, the id of the first predictor.
    """

    def __init__(self, weight_KD: Tensor, first: int):
        super().__init__()
        self.weight = nn.Parameter(weight_KD)
        self.first = first

    @classmethod
    def drawn(
        cls, model: PreTrainedModel, count: int, seed: int, known: list[int] | None = None
    ) -> PredictorRows:
        """Rows for a causal LM, on the device and in the dtype of its embedding.

        They are normally distributed, with the mean and standard deviation of the vocabulary's rows in each dimension, and
        depend only on `seed`; with `known`, they are copies of these rows of the vocabulary.

        Raises:
            ConfigError: the model's input embedding is not an `nn.Embedding`.
        """
        embedding = plain_module(model.get_input_embeddings())
        if not isinstance(embedding, nn.Embedding):
            raise ConfigError(
                f"{type(model).__name__}: predictor tokens need an nn.Embedding as input embedding, and this model has a "
                f"{type(embedding).__name__}; use predictors=0"
            )
        vocabulary = embedding.weight.detach()
        if known:
            return cls(vocabulary[known].clone(), len(vocabulary))
        # A generator on the CPU gives the same rows on every device.
        noise = torch.randn(
            count, vocabulary.shape[1], generator=torch.Generator().manual_seed(seed)
        )
        values = vocabulary.float()
        rows = values.mean(0) + values.std(0) * noise.to(vocabulary.device)
        return cls(rows.to(vocabulary.dtype), len(vocabulary))

    @property
    def ids(self) -> list[int]:
        """The ids of the rows, V .. V+K-1."""
        return list(range(self.first, self.first + len(self.weight)))

    @contextmanager
    def placed(self, embedding: nn.Module, ids_RT: Tensor) -> Iterator[Tensor]:
        """Within this context `embedding` returns the predictors' rows at their ids in `ids_RT`.

        It yields the ids (R, T) to call the model with. All of them are in the vocabulary, since other modules read ids too
        (per-layer embeddings, routers). Every call gives the rows a gradient, even one without predictors, as DDP expects.
        Nothing waits for the device.
        """
        is_predictor = ids_RT >= self.first

        def put_in(module: nn.Module, arguments: Any, output_RTD: Tensor) -> Tensor:
            rows_KD = embedded(module, self.weight)
            # Indexing by a boolean mask would wait for the device. Instead every token looks up a row; a token of the
            # vocabulary looks up an additional row, which gets no gradient.
            rows_KD = torch.cat([rows_KD, rows_KD.new_zeros(1, rows_KD.shape[1])])
            additional = len(self.weight)
            numbers_RT = torch.where(is_predictor, ids_RT - self.first, additional)
            rows_RTD = F.embedding(numbers_RT, rows_KD, padding_idx=additional)
            return torch.where(is_predictor[..., None], rows_RTD.to(output_RTD.dtype), output_RTD)

        with embedding.register_forward_hook(put_in):
            yield ids_RT.clamp(max=self.first - 1)


def embedded(embedding: nn.Module, weight_KD: Tensor) -> Tensor:
    """The output of an embedding for rows (K, D) as if they were its own: Gemma scales rows, other models normalise them."""
    embedding = plain_module(embedding)
    if type(embedding).forward is nn.Embedding.forward:
        return weight_KD
    # An object of the same class that shares everything except the rows. A copy is impossible for the classes of FSDP.
    stand_in: Any = object.__new__(type(embedding))
    parameters = {**embedding._parameters, "weight": weight_KD}
    vars(stand_in).update(vars(embedding), _parameters=parameters, padding_idx=None)
    return stand_in.forward(torch.arange(len(weight_KD), device=weight_KD.device))


class PredictorHead(nn.Module):
    """A small network on the source's state, trained with the model but not exported.

    In LLM-JEPA itself, the model with K predictor tokens is the predictor; other JEPAs have a head (I-JEPA,
    arXiv:2301.08243; BYOL, arXiv:2006.07733). ``linear``: a D x D matrix without bias, initialised as the identity, so that
    training starts as if there were no head. ``mlp``: D -> 2 D -> D with GELU in between, with torch's initialisation. If
    there are several `groups`, each has its own network in `layers`. If the targets have another width (`target_width`), the
    head maps to that width, and a linear one has torch's initialisation.
    """

    def __init__(
        self, kind: str, width: int, seed: int, groups: int = 1, target_width: int | None = None
    ):
        super().__init__()
        self.target_width = target_width or width
        # torch initialises layers from the global generator, whose state is restored.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            networks = [self._network(kind, width) for _ in range(groups)]
        self.layers = networks[0] if groups == 1 else nn.ModuleList(networks)

    def _network(self, kind: str, width: int) -> nn.Sequential:
        if kind == "mlp":
            wider = nn.Linear(width, 2 * width)
            output = nn.Linear(2 * width, self.target_width)
            return nn.Sequential(wider, nn.GELU(), output)
        linear = nn.Linear(width, self.target_width, bias=False)
        if self.target_width == width:
            nn.init.eye_(linear.weight)
        return nn.Sequential(linear)

    def forward(self, source_PD: Tensor, groups_P: Tensor | None = None) -> Tensor:
        """Map states (P, D) to predictions (P, D) in float32, where the latter D is the width of the targets.

        Every network processes every state, at a small part of the cost of a step. So nothing waits for the device to select
        a group, and each network has a gradient in every batch, as DDP expects.

        Args:
            groups_P: (P,) int64, the index of each state's group; None for the first group.
        """
        # Predictions are compared in float32, so autocast must not lower their precision.
        with torch.autocast(source_PD.device.type, enabled=False):
            if isinstance(self.layers, nn.Sequential):
                return self.layers(source_PD.float())
            outputs_GPD = torch.stack([network(source_PD.float()) for network in self.layers])
            if groups_P is None:
                return outputs_GPD[0]
            return outputs_GPD[groups_P, torch.arange(len(groups_P), device=groups_P.device)]


class TrainedExtras(nn.Module):
    """Predictor rows and head of one causal LM, and the modules of its objective.

    Attributes:
        groups: numbers of the groups of rows and head (`objectives.base.Objective.groups`).
        in_state_dict: whether the model's state dict has them; set only if the weights are sharded (FSDP).
    """

    def __init__(
        self,
        predictors: PredictorRows | None,
        head: PredictorHead | None,
        objective: nn.Module | None,
        groups: Sequence[int] = (1,),
    ):
        super().__init__()
        self.groups = tuple(groups)
        self.predictors, self.head, self.objective = predictors, head, objective
        self.in_state_dict = False
        self.register_load_state_dict_post_hook(_ignore_missing)

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """As `nn.Module.state_dict`, but empty unless `in_state_dict` is set."""
        return (
            super().state_dict(*args, **kwargs)
            if self.in_state_dict
            else kwargs.get("destination", {})
        )


def _ignore_missing(module: nn.Module, incompatible: Any) -> None:
    """Let the weights of a plain model load into one with extras."""
    # In place: torch reads this list again.
    incompatible.missing_keys[:] = [
        name for name in incompatible.missing_keys if not is_extra(name)
    ]


# Created once, since every forward asks for the extras.
_NOTHING = TrainedExtras(None, None, None)


def is_extra(name: str, part: str = "") -> bool:
    """Whether training added the parameter of this name; with `part`, whether it is in that part (`HEAD`, `OBJECTIVE`)."""
    return f".{_EXTRAS}.{part}" in f".{name}"


def add_extras(
    inner: PreTrainedModel,
    predictors: PredictorRows | None,
    head: str = "none",
    seed: int = 0,
    objective: nn.Module | None = None,
    groups: Sequence[int] = (1,),
    target_width: int | None = None,
) -> None:
    """Give a causal LM predictor rows, a head of kind `head` (both for these groups) and the objective's modules, on its
    device. They replace earlier ones."""
    release(inner)
    network = None
    if head != "none":
        width = inner.get_output_embeddings().weight.shape[1]
        network = PredictorHead(head, width, seed, len(groups), target_width)
    if predictors is not None or network is not None or objective is not None:
        extras = TrainedExtras(predictors, network, objective, groups)
        inner.add_module(_EXTRAS, extras.to(embedding_rows(inner).device))


def release(inner: PreTrainedModel) -> None:
    """Remove everything that an earlier training run added to a causal LM."""
    if hasattr(inner, _EXTRAS):
        delattr(inner, _EXTRAS)
    inner.__dict__.pop(_ENCODER, None)


def trained_extras(inner: PreTrainedModel) -> TrainedExtras:
    """What training added to a causal LM; an object without parts if it added nothing."""
    return getattr(inner, _EXTRAS, _NOTHING)


def trained_names(inner: PreTrainedModel) -> list[str]:
    """Names of a causal LM's predictor tokens, in the order of their ids."""
    extras = trained_extras(inner)
    if extras.predictors is None:
        return []
    return predictor_names(len(extras.predictors.ids) // len(extras.groups), extras.groups)


def with_predictors(inner: PreTrainedModel, ids_RT: Tensor) -> AbstractContextManager[Tensor]:
    """`PredictorRows.placed` for a causal LM; yields the ids (R, T) unchanged if it has no rows."""
    rows = trained_extras(inner).predictors
    return (
        nullcontext(ids_RT) if rows is None else rows.placed(inner.get_input_embeddings(), ids_RT)
    )


# Target encoders


class TargetEncoder:
    """Shadow copies of a model's trained weights, which encode its targets. The model and its target encoder share the
    frozen weights.

    Args:
        model: a causal LM, or a PEFT model of one, after its weights are frozen and placed on devices. Its predictor head
            and its objective's modules have no shadow, since targets do not pass through them.
        moves: whether `update` will be called.
    """

    def __init__(self, model: nn.Module, moves: bool = True):
        free_gathered(model)
        self._model, self.moves = model, moves
        self._weights = {
            name: parameter
            for name, parameter in causal_lm(model).named_parameters()
            if parameter.requires_grad
            and not is_extra(name, HEAD)
            and not is_extra(name, OBJECTIVE)
        }
        self.shadow = {name: weight.detach().clone() for name, weight in self._weights.items()}
        # In float32: with lower precision, a step of 1 - m would round to zero.
        if moves:
            self.shadow = {name: value.float() for name, value in self.shadow.items()}
        object.__setattr__(causal_lm(model), _ENCODER, self)

    @torch.no_grad()
    def update(self, momentum: float) -> None:
        """Move the shadows towards the weights."""
        for name, weight in self._weights.items():
            shadow = local(self.shadow[name])
            shadow.lerp_(local(weight.detach()).to(shadow), 1 - momentum)

    @contextmanager
    def in_place(self) -> Iterator[PreTrainedModel]:
        """Within this context the model, which is yielded, computes with the shadows.

        It is for passes without a graph, before any pass with one: tensors that a graph has saved must not change.
        """
        # The memory of sharded weights is overwritten, so it is copied first; for other weights, only the tensors are
        # swapped.
        originals = {
            name: local(weight.detach()).clone() if is_sharded(weight) else weight.data
            for name, weight in self._weights.items()
        }
        try:
            self._put(self.shadow)
            yield causal_lm(self._model)
        finally:
            self._put(originals)

    def _put(self, values: Mapping[str, Tensor]) -> None:
        """Put values into the model; for sharded weights, only this process's parts."""
        for name, weight in self._weights.items():
            if not is_sharded(weight):
                weight.data = values[name].to(weight.dtype)
                continue
            local(weight.detach()).copy_(local(values[name]))
            # FSDP may have gathered the weight already and would use the gathered values.
            current = causal_lm(self._model).get_parameter(name)
            if current is not weight:
                current.data.copy_(whole(weight.detach()))
        # Autocast caches its copies by tensor object, not by value.
        torch.clear_autocast_cache()


def set_target_encoder(inner: PreTrainedModel, other: PreTrainedModel) -> None:
    """Let a separate model encode the targets of a causal LM. It is not trained, sharded or saved."""
    object.__setattr__(inner, _ENCODER, other.eval().requires_grad_(False))


def begin_targets(model: nn.Module, kind: str) -> None:
    """Let the current weights of a model encode its targets from now on, if the `kind` of target encoder is ``ema`` or
    ``frozen`` and it has none yet. Sharding creates new weights, so it must come before this."""
    if kind in (EMA, FROZEN) and target_encoder(causal_lm(model)) is None:
        TargetEncoder(model, moves=kind == EMA)


def move_targets(model: nn.Module, options: EMAOptions, done: float) -> None:
    """Update the moving average that encodes a model's targets, if there is one, after an optimizer step.

    Args:
        done: completed share of the training, in [0, 1].
    """
    encoder = target_encoder(causal_lm(model))
    if isinstance(encoder, TargetEncoder) and encoder.moves:
        # From 1 at the start to 0 at the end.
        share = (math.cos(math.pi * done) + 1) / 2
        end = options.ema_momentum_end
        encoder.update(end - (end - options.ema_momentum) * share)


def target_encoder(inner: PreTrainedModel) -> TargetEncoder | PreTrainedModel | None:
    """What encodes the targets of a causal LM: shadows of its weights or a separate model; None if it does so itself."""
    return inner.__dict__.get(_ENCODER)


def encoding_model(inner: PreTrainedModel) -> AbstractContextManager[PreTrainedModel]:
    """A context that yields the model that encodes the targets of a causal LM."""
    encoder = target_encoder(inner)
    if isinstance(encoder, TargetEncoder):
        return encoder.in_place()
    return nullcontext(inner if encoder is None else encoder)


# Files


def save_extras(model: nn.Module, folder: AnyPath, here: bool) -> None:
    """Write what training added to a causal LM (or to that of a PEFT model), atomically, in processes with `here` set. Every
    process must call this."""
    inner = causal_lm(model)
    # Gathering is collective, so it comes before the writing that only some processes do.
    encoder, extras = target_encoder(inner), trained_extras(inner)
    shadow = {}
    if isinstance(encoder, TargetEncoder):
        shadow = {name: whole(value).cpu() for name, value in encoder.shadow.items()}
    free_gathered(model)
    with whole_weights(extras, here):
        if here:
            save_predictors(inner, folder)
    if here and shadow:
        _save(shadow, Path(folder) / EMA_FILE, {"format": "pt"})


def save_predictors(inner: PreTrainedModel, folder: AnyPath) -> None:
    """As `save_extras`, without the target encoder and for weights that are not sharded."""
    extras = trained_extras(inner)
    if weights := dict(extras.named_parameters()):
        _save(weights, Path(folder) / PREDICTORS_FILE, {_GROUPS: " ".join(map(str, extras.groups))})


def _save(weights: Mapping[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    on_cpu = {name: value.detach().cpu().contiguous() for name, value in weights.items()}
    with replacing(path) as temporary:
        # One metadata entry only: the order of several would vary, and equal runs must write equal bytes.
        save_file(on_cpu, temporary, metadata=metadata)


def load_extras(model: nn.Module, folder: AnyPath) -> None:
    """Load what `save_extras` wrote. Raises ConfigError: the predictors differ from the model's."""
    inner = causal_lm(model)
    free_gathered(model)
    extras = trained_extras(inner)
    encoder = target_encoder(inner)
    path = Path(folder) / PREDICTORS_FILE
    parameters = dict(extras.named_parameters())
    if parameters:
        try:
            # A name that the model lacks stays in the state dict, so that loading it fails.
            saved = {
                name: like(value, parameters.get(name, value))
                for name, value in load_file(path).items()
            }
            extras.load_state_dict(saved)
        except RuntimeError:
            raise ConfigError(
                f"{path}: holds other predictors than this run's (up to version 0.2, all horizons shared one set of "
                "predictors); start the run over"
            ) from None
    if isinstance(encoder, TargetEncoder):
        for name, value in load_file(Path(folder) / EMA_FILE).items():
            encoder.shadow[name].copy_(like(value, encoder.shadow[name]))


def attach_saved(
    inner: PreTrainedModel, folder: AnyPath, objective: nn.Module | None = None
) -> str | None:
    """Give a causal LM the predictor rows and the head saved in a folder. Returns the kind of the head, None without one.

    Args:
        objective: modules of the objective, which get their saved weights; if None, these weights are ignored.

    Raises:
        ConfigError: the file is damaged, or belongs to a model of another width or vocabulary.
    """
    path = Path(folder) / PREDICTORS_FILE
    if not path.is_file():
        return None
    try:
        with safe_open(path, "pt") as file:
            groups = [int(group) for group in (file.metadata() or {}).get(_GROUPS, "1").split()]
            wanted = (ROWS, HEAD) if objective is None else (ROWS, HEAD, OBJECTIVE)
            names = [name for name in file.keys() if name.startswith(wanted)]  # noqa: SIM118
            weights = {name: file.get_tensor(name) for name in names}
        rows = weights.get(ROWS)
        head = {name: value for name, value in weights.items() if name.startswith(HEAD)}
        # The kind and the output width follow from the number and the shape of the tensors of a group's head.
        tensors = len(head) // len(groups)
        kind = {0: None, 1: "linear"}.get(tensors, "mlp")
        width = embedding_rows(inner).shape[1]
        output = ".2.weight" if kind == "mlp" else ".0.weight"
        target_width = next(
            (len(value) for name, value in head.items() if name.endswith(output)), None
        )
        if rows is not None and rows.shape[1] != width:
            raise RuntimeError(f"its rows are {rows.shape[1]} wide, the model's {width}")
        predictors = None if rows is None else PredictorRows(rows, vocabulary_size(inner))
        add_extras(
            inner,
            predictors,
            kind or "none",
            objective=objective,
            groups=groups,
            target_width=target_width,
        )
        extras = trained_extras(inner)
        extras.load_state_dict(weights)
        check_finite(extras, str(path))
    except (SafetensorError, RuntimeError, OSError) as error:
        what = f"the predictors do not fit this model ({said(error)})"
        raise ConfigError(
            f"{path}: {what}; remove the file to use the model without them"
        ) from None
    return kind
