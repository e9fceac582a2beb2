"""What training adds to a causal LM: predictor rows, a head and the objective's modules, and the EMA target encoder.

The former are one submodule of the model, so that optimizer, DDP, FSDP and autocast treat them as they treat any weight.
The model's state dict leaves them out: `save_pretrained` writes what the plain model has. Checkpoints and the export write
them next to it, to `PREDICTORS_FILE`.

The target encoder is ``shadow <- m * shadow + (1 - m) * weight`` after every optimizer step, with m along half a cosine over
the training (BYOL, arXiv:2006.07733, Section 3.2; I-JEPA, arXiv:2301.08243).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from stepjepa.errors import ConfigError
from stepjepa.modeling.load import check_finite
from stepjepa.modeling.predictors import PredictorHead, PredictorRows, vocabulary_size
from stepjepa.utils.files import replacing

PREDICTORS_FILE = "predictors.safetensors"
EMA_FILE = "target_encoder.safetensors"
OLD_HEAD_FILE = "jepa_head.safetensors"  # of version 0.1, which kept the rows in the vocabulary of its checkpoints
ROWS, HEAD, OBJECTIVE = "predictors.weight", "head.", "objective."  # the names in it, or how they begin
_EXTRAS = "jepa"  # the submodule
_ENCODER = "_stepjepa_target_encoder"


class TrainedExtras(nn.Module):
    """Predictor rows and head of one causal LM, and the modules of its objective.

    Attributes:
        in_state_dict: whether the model's state dict has them; only for weights that are gathered from several processes.
    """

    def __init__(self, predictors: PredictorRows | None, head: PredictorHead | None, objective: nn.Module | None):
        super().__init__()
        self.predictors, self.head, self.objective = predictors, head, objective
        self.in_state_dict = False
        self.register_load_state_dict_post_hook(_not_missed)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As `nn.Module.state_dict`, and nothing where they are left out."""
        return super().state_dict(*args, **kwargs) if self.in_state_dict else kwargs.get("destination", {})


def _not_missed(module: nn.Module, incompatible: Any) -> None:
    """Weights of a plain model are all that it needs."""
    incompatible.missing_keys[:] = [name for name in incompatible.missing_keys if not is_extra(name)]


def is_extra(name: str, part: str = "") -> bool:
    """Whether a parameter of this name belongs to what training adds, or to a `part` of it (`HEAD`, `OBJECTIVE`)."""
    return f".{_EXTRAS}.{part}" in f".{name}"


def add_extras(
    inner: Any,
    predictors: PredictorRows | None,
    head: str = "none",
    seed: int = 0,
    objective: nn.Module | None = None,
) -> None:
    """Give a causal LM predictor rows, a head of kind `head` and its objective's modules, on its device; the ones that it
    had are dropped."""
    release(inner)
    network = None
    if head != "none":
        network = PredictorHead(head, inner.get_output_embeddings().weight.shape[1], seed)
    if predictors is not None or network is not None or objective is not None:
        extras = TrainedExtras(predictors, network, objective)
        inner.add_module(_EXTRAS, extras.to(inner.get_input_embeddings().weight.device))


def release(inner: Any) -> None:
    """Take off a causal LM what an earlier training has added."""
    inner._modules.pop(_EXTRAS, None)
    inner.__dict__.pop(_ENCODER, None)


def trained_extras(inner: Any) -> TrainedExtras | None:
    """What training adds to a causal LM, None where it adds nothing."""
    return inner._modules.get(_EXTRAS)


def predictor_rows(inner: Any) -> PredictorRows | None:
    """The predictor rows of a causal LM, None where it has none."""
    extras = trained_extras(inner)
    return None if extras is None else extras.predictors


def predictor_head(inner: Any) -> PredictorHead | None:
    """The predictor head of a causal LM, None where it has none."""
    extras = trained_extras(inner)
    return None if extras is None else extras.head


def with_predictors(inner: Any, ids_RT: torch.Tensor) -> AbstractContextManager[torch.Tensor]:
    """`PredictorRows.placed` for a causal LM; the ids (R, T) as they are where it has no rows."""
    rows = predictor_rows(inner)
    return nullcontext(ids_RT) if rows is None else rows.placed(inner.get_input_embeddings(), ids_RT)


# The EMA target encoder


def momentum_at(done: float, start: float, end: float) -> float:
    """``end - (end - start) * (cos(pi * done) + 1) / 2`` for the share `done` in [0, 1] of the training."""
    return end - (end - start) * (math.cos(math.pi * min(max(done, 0.0), 1.0)) + 1) / 2


class TargetEncoder:
    """Shadows of a model's trained weights, which encode the targets. Frozen weights serve both encoders.

    Args:
        inner: the causal LM; its predictor head and its objective's modules, which targets do not pass, have no shadow.
    """

    def __init__(self, inner: Any):
        self._weights = {
            name: parameter
            for name, parameter in inner.named_parameters()
            if parameter.requires_grad and not is_extra(name, HEAD) and not is_extra(name, OBJECTIVE)
        }
        # In float32: a step of 1 - m is lost in a shorter dtype.
        self.shadow = {name: parameter.detach().float().clone() for name, parameter in self._weights.items()}

    @torch.no_grad()
    def update(self, momentum: float) -> None:
        """Move the shadows towards the weights."""
        for name, weight in self._weights.items():
            self.shadow[name].lerp_(weight.detach().to(self.shadow[name]), 1 - momentum)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within this context the model computes with the shadows. Only for passes without a graph, and before those with
        one: what a graph has saved must not change under it."""
        own = {name: weight.data for name, weight in self._weights.items()}
        try:
            for name, weight in self._weights.items():
                weight.data = self.shadow[name].to(weight.dtype)
            torch.clear_autocast_cache()  # autocast keeps its copies by tensor object, whatever data that holds
            yield
        finally:
            for name, weight in self._weights.items():
                weight.data = own[name]
            torch.clear_autocast_cache()


def add_target_encoder(inner: Any) -> TargetEncoder:
    """Give a causal LM an EMA target encoder; call it when it is known which weights are trained and where they lie."""
    encoder = TargetEncoder(inner)
    object.__setattr__(inner, _ENCODER, encoder)
    return encoder


def target_encoder(inner: Any) -> TargetEncoder | None:
    """The EMA target encoder of a causal LM, None where it has none."""
    return inner.__dict__.get(_ENCODER)


# Files


def save_extras(inner: Any, folder: str | os.PathLike[str], state_dict: Mapping[str, Any] | None = None) -> None:
    """Write what training adds to a causal LM, atomically; nothing of what it has not.

    Args:
        state_dict: full weights, where those in memory are sharded.
    """
    save_predictors(inner, folder, state_dict)
    encoder = target_encoder(inner)
    if encoder is not None:
        _save(encoder.shadow, Path(folder) / EMA_FILE)


def save_predictors(inner: Any, folder: str | os.PathLike[str], state_dict: Mapping[str, Any] | None = None) -> None:
    """As `save_extras`, without the target encoder."""
    weights = extras_weights(inner, state_dict)
    if weights:
        _save(weights, Path(folder) / PREDICTORS_FILE)


def _save(weights: Mapping[str, torch.Tensor], path: Path) -> None:
    on_cpu = {name: value.detach().cpu().contiguous() for name, value in weights.items()}
    with replacing(path) as temporary:
        save_file(on_cpu, temporary, metadata={"format": "pt"})


def extras_weights(inner: Any, state_dict: Mapping[str, Any] | None = None) -> dict[str, torch.Tensor]:
    """The weights of rows, head and objective, of any shape, by their names in `PREDICTORS_FILE`; from `state_dict` if it is
    given."""
    extras = trained_extras(inner)
    own = {} if extras is None else dict(extras.named_parameters())
    found = {name: own[name] if state_dict is None else state_dict[f"{_EXTRAS}.{name}"] for name in own}
    return {name: weight.detach() for name, weight in found.items()}


def load_extras(inner: Any, folder: str | os.PathLike[str]) -> None:
    """Read what `save_extras` wrote."""
    extras, encoder = trained_extras(inner), target_encoder(inner)
    if extras is not None and not extras.in_state_dict:
        extras.load_state_dict(load_file(Path(folder) / PREDICTORS_FILE))
    if encoder is not None:
        for name, value in load_file(Path(folder) / EMA_FILE).items():
            encoder.shadow[name].copy_(value)


def attach_saved(inner: Any, folder: str | os.PathLike[str], with_head: bool = True) -> str | None:
    """Give a causal LM the predictor rows and the head that lie next to it, as training had them. What an objective has
    trained besides is of use to its training alone.

    Returns:
        The head's kind, None where there is none or `with_head` is false.

    Raises:
        ConfigError: the file is damaged, or of a model of another width or vocabulary.
    """
    path, old = Path(folder) / PREDICTORS_FILE, Path(folder) / OLD_HEAD_FILE
    if not path.is_file() and not old.is_file():
        return None
    try:
        if path.is_file():
            weights = load_file(path)
        else:
            path, weights = old, {f"{HEAD}{name}": value for name, value in load_file(old).items()}
        parts = (ROWS, HEAD) if with_head else (ROWS,)
        weights = {name: value for name, value in weights.items() if name.startswith(parts)}
        rows = weights.get(ROWS)
        tensors = len(weights) - (rows is not None)  # of the head
        kind = {0: None, 1: "linear"}.get(tensors, "mlp")
        width = inner.get_input_embeddings().weight.shape[1]
        if rows is not None and rows.shape[1] != width:
            raise RuntimeError(f"its rows are {rows.shape[1]} wide, the model's {width}")
        predictors = None if rows is None else PredictorRows(rows, vocabulary_size(inner))
        add_extras(inner, predictors, kind or "none")
        extras = trained_extras(inner)
        if extras is not None:
            extras.load_state_dict(weights)
            check_finite(extras, str(path))
    except (SafetensorError, RuntimeError, OSError) as error:
        why = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"{path}: are no predictors of this model ({why}); remove the file to read without them"
        ) from None
    return kind
