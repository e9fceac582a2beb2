"""The final model: the vocabulary and tokenizer as they came, LoRA merged or as an adapter, plain Hugging Face form."""

from __future__ import annotations

import copy
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from stepjepa.errors import ConfigError
from stepjepa.modeling.configs import text_config
from stepjepa.modeling.forward import causal_lm
from stepjepa.modeling.heads import is_head_weight, save_head
from stepjepa.modeling.predictors import predictor_names
from stepjepa.modeling.segments import SEGMENTS
from stepjepa.utils.manifest import MANIFEST, mismatch, write_manifest

_BESIDE = ".export"  # where the files are written before they are moved in


def export_model(
    model: Any,
    tokenizer: Any,
    output_dir: str | os.PathLike[str],
    *,
    vocabulary: int,
    predictor_ids: list[int],
    merge_lora: bool,
    keep_predictors: bool = False,
    state_dict: dict[str, torch.Tensor] | None = None,
) -> None:
    """Write the trained model so that ``AutoModelForCausalLM.from_pretrained(output_dir)`` loads it.

    The model in memory is not changed. A predictor head is no part of the model and is written beside it.

    Args:
        model: the trained causal LM, bare or inside PEFT.
        vocabulary: V; embedding rows behind it are predictor tokens and are left out.
        merge_lora: add the adapter to the weights; otherwise an adapter folder is written.
        keep_predictors: keep the predictor tokens, in the tokenizer too.
        state_dict: full weights, by name and of any shape, where the model in memory is sharded (FSDP).

    Raises:
        ConfigError: predictors are to be kept in an adapter.
    """
    # Written beside and moved in file by file, so that a reader never finds a part of a file.
    target = Path(output_dir)
    target.mkdir(parents=True, exist_ok=True)
    output_dir = target / _BESIDE
    shutil.rmtree(output_dir, ignore_errors=True)
    output_dir.mkdir()
    try:
        _write(model, tokenizer, output_dir, vocabulary, predictor_ids, merge_lora, keep_predictors, state_dict)
        written = sorted(entry.name for entry in output_dir.iterdir())
        (target / MANIFEST).unlink(missing_ok=True)  # of the model that is replaced
        for name in written:
            os.replace(output_dir / name, target / name)
        write_manifest(target, written)
    finally:
        shutil.rmtree(output_dir, ignore_errors=True)


def export_problem(folder: Path) -> str | None:
    """Why the model in a folder is not one that `export_model` wrote to its end, as far as that shows without reading it."""
    if (folder / MANIFEST).exists():
        return mismatch(folder, only_weights=True, checksums=False)
    return "its writing was cut off" if (folder / _BESIDE).exists() else None


def _write(
    model: Any,
    tokenizer: Any,
    output_dir: Path,
    vocabulary: int,
    predictor_ids: list[int],
    merge_lora: bool,
    keep_predictors: bool,
    state_dict: dict[str, torch.Tensor] | None,
) -> None:
    is_peft = hasattr(model, "get_base_model")
    if is_peft and not merge_lora:
        if keep_predictors:
            raise ConfigError("--keep_predictors needs --merge_lora: an adapter cannot change the vocabulary")
        _save_adapter(model, output_dir)
    else:
        inner = causal_lm(model)
        weights = plain_state_dict(model, state_dict)
        rows, taken = vocabulary, list(range(vocabulary))
        if keep_predictors and predictor_ids:
            tokenizer = copy.deepcopy(tokenizer)
            names = predictor_names(len(predictor_ids))
            tokenizer.add_tokens(names, special_tokens=True)
            rows = max(vocabulary, len(tokenizer))
            taken = [min(row, vocabulary - 1) for row in range(rows)]
            for kept, row in zip(tokenizer.convert_tokens_to_ids(names), predictor_ids, strict=True):
                taken[kept] = row
        index = torch.tensor(taken)
        for name in _embedding_keys(inner):
            if name in weights and weights[name].shape[0] != rows:
                weights[name] = weights[name].detach().cpu().index_select(0, index)
        skeleton(inner, rows, weights).save_pretrained(output_dir)
    save_head(causal_lm(model), output_dir)
    tokenizer.save_pretrained(output_dir)


def plain_state_dict(model: Any, state_dict: dict[str, torch.Tensor] | None = None) -> dict[str, torch.Tensor]:
    """The causal LM's own weights (any shape), LoRA added where there is any, under the names of the bare model."""
    inner = causal_lm(model)
    if state_dict is not None and not hasattr(model, "get_base_model"):
        return {name: value for name, value in state_dict.items() if not is_head_weight(name)}
    weights: dict[str, torch.Tensor] = {}
    for name, value in inner.state_dict().items():
        if "lora_" in name or "trainable_tokens" in name or is_head_weight(name):
            continue
        weights[name.replace(".token_adapter.", ".").replace(".base_layer.", ".")] = value
    if hasattr(model, "get_base_model"):
        from peft.tuners.lora import LoraLayer
        from peft.tuners.trainable_tokens import TrainableTokensLayer

        module: Any
        for name, module in inner.named_modules():
            if isinstance(module, TrainableTokensLayer):
                key = f"{name.removesuffix('.token_adapter')}.weight"
                weights[key] = module.get_merged_weights(module.active_adapters)
            if isinstance(module, LoraLayer):
                layer: Any = module
                for adapter in layer.active_adapters:
                    if adapter in layer.lora_A:
                        key = f"{name}.weight"
                        weights[key] = weights[key] + layer.get_delta_weight(adapter).to(weights[key].dtype)
    return weights


def skeleton(inner: Any, vocabulary: int, weights: dict[str, torch.Tensor]) -> Any:
    """A bare model of the same class that holds `weights` (by name, any shape), without a copy of them.

    Raises:
        RuntimeError: a weight of the model is not among them.
    """
    config = copy.deepcopy(inner.config)
    text = text_config(config)
    text.vocab_size = vocabulary
    if text._attn_implementation == SEGMENTS:
        text._attn_implementation = "sdpa"
    with torch.device("meta"):
        bare = type(inner)(config)
    bare.load_state_dict(weights, strict=False, assign=True)
    bare.tie_weights()
    missing = [name for name, value in bare.named_parameters() if value.is_meta]
    if missing:
        raise RuntimeError(f"weights missing in the export: {', '.join(missing[:5])}")
    bare.generation_config = copy.deepcopy(inner.generation_config)
    return bare


def _embedding_keys(inner: Any) -> list[str]:
    """State-dict names of the input and output embeddings (and the output's bias)."""
    modules = {id(inner.get_input_embeddings()), id(inner.get_output_embeddings())}
    names = [name for name, module in inner.named_modules() if id(module) in modules]
    return [f"{name}.{kind}" for name in names for kind in ("weight", "bias")]


def _save_adapter(model: Any, output_dir: Path) -> None:
    """The LoRA weights alone, for the base model as it came (the predictor rows are left out)."""
    from peft.utils import get_peft_model_state_dict

    weights = get_peft_model_state_dict(model, save_embedding_layers=False)
    weights = {
        name: value.detach().cpu().contiguous()
        for name, value in weights.items()
        if "token_adapter" not in name and "trainable_tokens" not in name
    }
    config = copy.deepcopy(model.peft_config[model.active_adapter])
    config.trainable_token_indices = None
    config.inference_mode = True
    config.save_pretrained(output_dir)
    save_file(weights, output_dir / "adapter_model.safetensors", metadata={"format": "pt"})
