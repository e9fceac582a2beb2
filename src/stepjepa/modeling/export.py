"""The final model: the vocabulary and tokenizer as they came, LoRA merged or as an adapter, plain Hugging Face form."""

from __future__ import annotations

import copy
import logging
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from stepjepa.errors import ConfigError
from stepjepa.modeling.configs import text_config
from stepjepa.modeling.extras import (
    OLD_HEAD_FILE,
    PREDICTORS_FILE,
    ROWS,
    extras_weights,
    is_extra,
    predictor_rows,
    save_predictors,
)
from stepjepa.modeling.forward import causal_lm
from stepjepa.modeling.predictors import PredictorRows, known_predictors, predictor_names, vocabulary_size
from stepjepa.modeling.segments import SEGMENTS
from stepjepa.utils.files import share
from stepjepa.utils.manifest import MANIFEST, listed_files, mismatch, write_manifest

logger = logging.getLogger("stepjepa")
_BESIDE = ".export"  # where the files are written before they are moved in


def export_model(
    model: Any,
    tokenizer: Any,
    output_dir: str | os.PathLike[str],
    *,
    merge_lora: bool,
    keep_predictors: bool = False,
    state_dict: dict[str, torch.Tensor] | None = None,
) -> list[str]:
    """Write the trained model so that ``AutoModelForCausalLM.from_pretrained(output_dir)`` loads it.

    The model in memory is not changed. Predictor rows and head are no part of it and are written to `PREDICTORS_FILE`.

    Args:
        model: the trained causal LM, bare or inside PEFT.
        merge_lora: add the adapter to the weights; otherwise an adapter folder is written.
        keep_predictors: write the predictor tokens into the vocabulary and the tokenizer. Those that the tokenizer knows get
            their trained rows in any case, but in an adapter.
        state_dict: full weights, by name and of any shape, where the model in memory is sharded (FSDP).

    Returns:
        Names of the files.

    Raises:
        ConfigError: predictors are to be kept in an adapter.
    """
    # Written in a folder of its own and moved file by file, so that a reader never finds a part of a file.
    target = Path(output_dir)
    target.mkdir(parents=True, exist_ok=True)
    output_dir = target / _BESIDE
    shutil.rmtree(output_dir, ignore_errors=True)
    output_dir.mkdir()
    try:
        _write(model, tokenizer, output_dir, merge_lora, keep_predictors, state_dict)
        share(output_dir)
        written = sorted(path.relative_to(output_dir).as_posix() for path in output_dir.rglob("*") if path.is_file())
        earlier = listed_files(target) or {}
        (target / MANIFEST).unlink(missing_ok=True)  # of the model that is replaced
        for name in written:
            (target / name).parent.mkdir(exist_ok=True)  # several chat templates are a folder
            os.replace(output_dir / name, target / name)
        for name in _stale(written, earlier):
            (target / name).unlink(missing_ok=True)
        # Without the predictors, which are no part of the model: whoever wants to read without them removes them.
        write_manifest(target, [name for name in written if name != PREDICTORS_FILE])
    finally:
        shutil.rmtree(output_dir, ignore_errors=True)
    return written


def _stale(written: list[str], earlier: Iterable[str]) -> set[str]:
    """Files of an earlier export that would be read together with, or in place of, those that were written."""
    stale = {PREDICTORS_FILE, OLD_HEAD_FILE, *earlier}
    if "config.json" in written:
        stale |= {
            "adapter_config.json",
            "adapter_model.safetensors",
            "model.safetensors",
            "model.safetensors.index.json",
        }
    return stale - set(written)


def export_problem(folder: Path) -> str | None:
    """Why the model in a folder is not one that `export_model` wrote to its end, as far as that shows without reading it."""
    if (folder / MANIFEST).exists():
        return mismatch(folder, only_weights=True, checksums=False)
    return "its writing was cut off" if (folder / _BESIDE).exists() else None


def _write(
    model: Any,
    tokenizer: Any,
    output_dir: Path,
    merge_lora: bool,
    keep_predictors: bool,
    state_dict: dict[str, torch.Tensor] | None,
) -> None:
    inner: Any = causal_lm(model)
    if inner is not model and not merge_lora:
        if keep_predictors:
            raise ConfigError("--keep_predictors needs --merge_lora: an adapter cannot change the vocabulary")
        _save_adapter(model, output_dir)
    else:
        weights, rows = plain_state_dict(model, state_dict), predictor_rows(inner)
        if rows is not None:
            tokenizer, kept, new = kept_predictors(tokenizer, rows, keep_predictors)
            if kept:
                write_rows(inner, weights, kept, extras_weights(inner, state_dict)[ROWS], new)
        skeleton(inner, weights).save_pretrained(output_dir)
    save_predictors(inner, output_dir, state_dict)
    tokenizer.save_pretrained(output_dir)


def kept_predictors(tokenizer: Any, rows: PredictorRows, keep: bool) -> tuple[Any, list[int], bool]:
    """The tokenizer of the export, the ids that predictor tokens get in its vocabulary (none where they are left out), and
    whether they are new there."""
    names = predictor_names(len(rows.ids))
    known = known_predictors(tokenizer, rows.first, len(names))
    if known or not keep:
        return tokenizer, known, False
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.add_tokens(names, special_tokens=True)
    return tokenizer, tokenizer.convert_tokens_to_ids(names), True


def check_keeps_predictors(model: Any, tokenizer: Any) -> None:
    """Find out before training whether the export can write the predictor tokens into the vocabulary.

    Raises:
        ConfigError: another part of the model has the vocabulary's size and cannot grow with it.
    """
    inner: Any = causal_lm(model)
    rows = predictor_rows(inner)
    if rows is None:
        return
    weights = {
        name.replace(".base_layer.", "."): torch.empty_like(value, device="meta")
        for name, value in inner.state_dict().items()
        if "lora_" not in name
    }
    _, kept, new = kept_predictors(tokenizer, rows, True)
    try:
        write_rows(inner, weights, kept, rows.weight.detach().to("meta"), new)
        _bare(inner, weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:160]
        raise ConfigError(
            f"keep_predictors: the vocabulary of {type(inner).__name__} cannot grow ({reason}); leave it out"
        ) from None


def write_rows(inner: Any, weights: dict[str, torch.Tensor], kept: list[int], rows_KD: torch.Tensor, new: bool) -> None:
    """Put predictor rows (K, D) into the vocabulary of `weights` (of any shape), which grows where an id of `kept` needs it.

    `new` tokens get zeros in an output embedding of its own: they never entered a softmax.
    """
    embedding = f"{module_name(inner, inner.get_input_embeddings())}.weight"
    size = max(len(weights[embedding]), max(kept) + 1)
    module = inner.get_output_embeddings()
    output = None if module is None else module_name(inner, module)
    own = output is not None and module.weight is not inner.get_input_embeddings().weight
    for name in (embedding, *((f"{output}.weight", f"{output}.bias") if own else ())):
        if name not in weights:
            continue
        value = weights[name].detach()
        value = value if value.is_meta else value.cpu()
        value = torch.cat([value, value[-1:].expand(size - len(value), *value.shape[1:])])
        if name == embedding:
            value[kept] = rows_KD.to(value)
        elif new:
            value[kept] = 0
        weights[name] = value
    if not own and f"{output}.weight" in weights:
        weights[f"{output}.weight"] = weights[embedding]


def plain_state_dict(model: Any, state_dict: dict[str, torch.Tensor] | None = None) -> dict[str, torch.Tensor]:
    """The causal LM's own weights (any shape), LoRA added where there is any, under the names of the bare model."""
    inner = causal_lm(model)
    if state_dict is not None and not hasattr(model, "get_base_model"):
        return {name: value for name, value in state_dict.items() if not is_extra(name)}
    weights: dict[str, torch.Tensor] = {}
    for name, value in inner.state_dict().items():
        if "lora_" not in name and not is_extra(name):
            weights[name.replace(".base_layer.", ".")] = value
    if hasattr(model, "get_base_model"):
        from peft.tuners.lora import LoraLayer

        for name, module in inner.named_modules():
            if isinstance(module, LoraLayer):
                layer: Any = module
                for adapter in layer.active_adapters:
                    if adapter in layer.lora_A:
                        key = f"{name}.weight"
                        weights[key] = weights[key] + layer.get_delta_weight(adapter).to(weights[key].dtype)
    return weights


def skeleton(inner: Any, weights: dict[str, torch.Tensor]) -> Any:
    """A bare model of the same class that holds `weights` (by name, any shape), without a copy of them.

    Raises:
        RuntimeError: a weight of the model is not among them.
    """
    bare = _bare(inner, weights)
    bare.tie_weights()
    missing = [name for name, value in bare.named_parameters() if value.is_meta]
    if missing:
        raise RuntimeError(f"weights missing in the export: {', '.join(missing[:5])}")
    bare.generation_config = copy.deepcopy(inner.generation_config)
    return bare


def _bare(inner: Any, weights: dict[str, torch.Tensor]) -> Any:
    config = copy.deepcopy(inner.config)
    text = text_config(config)
    # By how much it grew: some models embed more tokens than they predict.
    text.vocab_size += len(weights[f"{module_name(inner, inner.get_input_embeddings())}.weight"]) - vocabulary_size(
        inner
    )
    if text._attn_implementation == SEGMENTS:
        text._attn_implementation = "sdpa"
    with torch.device("meta"):
        bare = type(inner)(config)
    bare.load_state_dict(weights, strict=False, assign=True)
    return bare


def module_name(inner: Any, wanted: Any) -> str | None:
    """Name of a module in `inner`; None where it is none of its."""
    return next((name for name, module in inner.named_modules() if module is wanted), None)


def _save_adapter(model: Any, output_dir: Path) -> None:
    """The LoRA weights alone, for the base model as it came."""
    from peft.utils import get_peft_model_state_dict

    weights = get_peft_model_state_dict(model, save_embedding_layers=False)
    weights = {name: value.detach().cpu().contiguous() for name, value in weights.items()}
    config = copy.deepcopy(model.peft_config[model.active_adapter])
    config.inference_mode = True
    if not config.base_model_name_or_path:
        logger.warning(
            "the base model was made in memory and has no name: the adapter loads only with "
            "PeftModel.from_pretrained(base, folder); merge_lora writes a model that needs no base"
        )
    config.save_pretrained(output_dir)
    save_file(weights, output_dir / "adapter_model.safetensors", metadata={"format": "pt"})
