"""What training adds to a causal LM: predictor rows and a predictor head, which are trained, and the EMA target encoder.

Rows and head are one submodule of the model, so that optimizer, DDP, FSDP and autocast treat them as they treat any weight.
The model's state dict leaves them out: `save_pretrained` writes what the plain model has. Checkpoints and the export write
them next to it, to `PREDICTORS_FILE`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from stepjepa.errors import ConfigError
from stepjepa.modeling.ema import drop_target_encoder, target_encoder
from stepjepa.modeling.heads import EXTRAS, PredictorHead
from stepjepa.modeling.load import check_finite
from stepjepa.modeling.predictors import PredictorRows, vocabulary_size
from stepjepa.utils.files import replacing

PREDICTORS_FILE = "predictors.safetensors"
ROWS = "predictors.weight"  # the rows' name in it
EMA_FILE = "target_encoder.safetensors"
OLD_HEAD_FILE = "jepa_head.safetensors"  # of version 0.1, which kept the rows in the vocabulary of its checkpoints


class TrainedExtras(nn.Module):
    """Predictor rows and head of one causal LM, and the modules of its objective.

    Attributes:
        in_state_dict: whether the model's state dict has them; only for weights that are gathered from several processes.
    """

    def __init__(
        self, predictors: PredictorRows | None, head: PredictorHead | None, objective: nn.Module | None = None
    ):
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


def is_extra(name: str) -> bool:
    """Whether a name among a model's parameters belongs to the predictor rows or head."""
    return name.startswith(f"{EXTRAS}.") or f".{EXTRAS}." in name


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
    weight = inner.get_input_embeddings().weight
    network = None
    if head != "none":
        network = PredictorHead(head, inner.get_output_embeddings().weight.shape[1], seed)
    if predictors is not None or network is not None or objective is not None:
        inner.add_module(EXTRAS, TrainedExtras(predictors, network, objective).to(weight.device))


def trained_extras(inner: Any) -> TrainedExtras | None:
    """Rows and head of a causal LM, None where it has neither."""
    return inner._modules.get(EXTRAS)


def predictor_rows(inner: Any) -> PredictorRows | None:
    """The predictor rows of a causal LM, None where it has none."""
    extras = trained_extras(inner)
    return None if extras is None else extras.predictors


def predictor_head(inner: Any) -> PredictorHead | None:
    """The predictor head of a causal LM, None where it has none."""
    extras = trained_extras(inner)
    return None if extras is None else extras.head


def objective_modules(inner: Any) -> nn.Module | None:
    """The modules of the objective that a causal LM is trained with, None where it has none."""
    extras = trained_extras(inner)
    return None if extras is None else extras.objective


@contextmanager
def with_predictors(inner: Any, ids_RT: torch.Tensor) -> Iterator[torch.Tensor]:
    """`PredictorRows.placed` for a causal LM; the ids (R, T) as they are where it has no rows."""
    rows = predictor_rows(inner)
    if rows is None:
        yield ids_RT
        return
    with rows.placed(inner.get_input_embeddings(), ids_RT) as known_RT:
        yield known_RT


def release(inner: Any) -> None:
    """Take off a causal LM what an earlier training has added."""
    inner._modules.pop(EXTRAS, None)
    drop_target_encoder(inner)


def save_extras(inner: Any, folder: str | os.PathLike[str], state_dict: Mapping[str, Any] | None = None) -> None:
    """Write rows, head and target encoder of a causal LM; nothing of what it has not.

    Args:
        state_dict: full weights, where those in memory are sharded.
    """
    save_predictors(inner, folder, state_dict)
    encoder = target_encoder(inner)
    if encoder is not None:
        save_tensors(encoder.shadow, Path(folder) / EMA_FILE)


def save_predictors(inner: Any, folder: str | os.PathLike[str], state_dict: Mapping[str, Any] | None = None) -> None:
    """Write rows and head alone; see `save_extras`."""
    weights = extras_weights(inner, state_dict)
    if weights:
        save_tensors(weights, Path(folder) / PREDICTORS_FILE)


def save_tensors(weights: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write tensors of any shape atomically."""
    on_cpu = {name: value.detach().cpu().contiguous() for name, value in weights.items()}
    with replacing(path) as temporary:
        save_file(on_cpu, temporary, metadata={"format": "pt"})


def extras_weights(inner: Any, state_dict: Mapping[str, Any] | None = None) -> dict[str, torch.Tensor]:
    """The weights of rows and head, of any shape, by their names in `PREDICTORS_FILE`; from `state_dict` if it is given."""
    extras = trained_extras(inner)
    if extras is None:
        return {}
    own = {name: parameter.detach() for name, parameter in extras.named_parameters()}
    return own if state_dict is None else {name: state_dict[f"{EXTRAS}.{name}"] for name in own}


def load_extras(inner: Any, folder: str | os.PathLike[str]) -> None:
    """Read what `save_extras` wrote."""
    extras, encoder = trained_extras(inner), target_encoder(inner)
    if extras is not None and not extras.in_state_dict:
        extras.load_state_dict(load_file(Path(folder) / PREDICTORS_FILE))
    if encoder is not None:
        for name, value in load_file(Path(folder) / EMA_FILE).items():
            encoder.shadow[name].copy_(value)


def attach_saved(inner: Any, folder: str | os.PathLike[str], with_head: bool = True) -> str | None:
    """Give a causal LM the predictor rows and the head that lie next to it, as training had them.

    Returns:
        The head's kind, None where there is none or `with_head` is false.

    Raises:
        ConfigError: the file is damaged, or of a model of another width or vocabulary.
    """
    path = Path(folder) / PREDICTORS_FILE
    old = Path(folder) / OLD_HEAD_FILE
    if not path.is_file():
        if not old.is_file():
            return None
        path = old
    try:
        weights = load_file(path)
        if path == old:
            weights = {f"head.{name}": value for name, value in weights.items()}
        # What an objective trained beside the model is of use to its training alone.
        weights = {name: value for name, value in weights.items() if not name.startswith("objective.")}
        rows, kind = weights.get(ROWS), None
        if any(name.startswith("head.") for name in weights) and with_head:
            kind = "linear" if sum(name.startswith("head.") for name in weights) == 1 else "mlp"
        if not with_head:
            weights = {name: value for name, value in weights.items() if not name.startswith("head.")}
        embedding = inner.get_input_embeddings().weight
        if rows is not None and rows.shape[1] != embedding.shape[1]:
            raise RuntimeError(f"its rows are {rows.shape[1]} wide, the model's {embedding.shape[1]}")
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
