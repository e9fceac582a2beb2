"""Writes the final model in plain Hugging Face form: original vocabulary and tokenizer, LoRA merged or as an adapter.

`JEPATrainer.save_model`, uploads and ``stepjepa export`` all call `export_model`.
"""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import GENERATION_CONFIG_NAME, SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from stepjepa.config.option import Names
from stepjepa.data.tokens import answer_end, stop_ids, usable_renderer
from stepjepa.errors import ConfigError, said
from stepjepa.modeling.card import CARD, Records, is_card, write_card
from stepjepa.modeling.extras import (
    PREDICTORS_FILE,
    attach_saved,
    is_extra,
    known_predictors,
    save_predictors,
    trained_extras,
    trained_names,
)
from stepjepa.modeling.load import load_adapter, load_model, load_tokenizer
from stepjepa.modeling.lora import check_lora
from stepjepa.modeling.masks import OWN
from stepjepa.modeling.options import ExportOptions
from stepjepa.modeling.parts import causal_lm, name_of, plain_module, text_config, vocabulary_size
from stepjepa.utils.files import (
    MANIFEST,
    AnyPath,
    check_writable,
    listed_files,
    mismatch,
    read_object,
    remove_tree,
    share,
    write_json,
    write_manifest,
    write_whole,
)

logger = logging.getLogger("stepjepa")
# The folder inside the output folder where files are written before they are moved.
_UNFINISHED = ".export"
_ADAPTER = "adapter_config.json"
_NAME, _UNKNOWN = Names(ExportOptions), Records()
# Files of a model that an export replaces, whether they come from an export or not.
_MODEL = {
    _ADAPTER,
    "adapter_model.safetensors",
    "model.safetensors",
    "model.safetensors.index.json",
}


def export_model(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    output_dir: AnyPath,
    *,
    merge_lora: bool,
    keep_predictors: bool = False,
    records: Records = _UNKNOWN,
) -> list[str]:
    """Write the trained model so that ``AutoModelForCausalLM.from_pretrained(output_dir)`` loads it; returns the file names.

    The model in memory is not changed. The exported model has no predictor head, and predictor rows only if they are kept in
    its vocabulary (see `keep_predictors`); `PREDICTORS_FILE` has both.

    Args:
        merge_lora: merge the adapter into the weights; otherwise write an adapter folder.
        keep_predictors: write the predictor tokens into the vocabulary and the tokenizer. Those that the tokenizer already
            has always get their trained rows, except in an adapter.
        records: records of the training, for the model card. A README.md that the user wrote is not changed.

    Raises:
        ConfigError: `keep_predictors` is set, but an adapter is written.
    """
    # Written to a separate folder and moved file by file, so that a reader never sees an incomplete file.
    target = Path(output_dir)
    folder = target / _UNFINISHED
    remove_tree(folder)
    folder.mkdir(parents=True)
    try:
        tokenizer, end = _write(model, tokenizer, folder, merge_lora, keep_predictors, records)
        if is_card(target) or not (target / CARD).exists():
            try:
                write_card(folder, target.resolve().name, records, tokenizer, end)
            # Damaged records must not prevent the export of a model.
            except Exception as error:
                logger.warning(
                    "the model card was written without the records of the training: %s",
                    said(error, lines=1),
                )
                write_card(folder, target.resolve().name, _UNKNOWN, tokenizer, end)
        share(folder)
        written = sorted(
            path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
        )
        # Files of an earlier export would be read together with, or instead of, the new ones.
        stale = {PREDICTORS_FILE, *(listed_files(target) or ())}
        if "config.json" in written:
            stale |= _MODEL
        # Without a manifest, an export that is interrupted here counts as incomplete.
        (target / MANIFEST).unlink(missing_ok=True)
        for name in written:
            # A tokenizer with several chat templates writes them to a folder.
            (target / name).parent.mkdir(exist_ok=True)
            os.replace(folder / name, target / name)
        for name in stale.difference(written):
            # Through a symbolic link to a folder, this would delete files outside the output folder.
            parent = (target / name).parent
            if parent == target or not parent.is_symlink():
                (target / name).unlink(missing_ok=True)
        # Only files of the model: users may remove the predictors and edit the card.
        write_manifest(target, [name for name in written if name not in (PREDICTORS_FILE, CARD)])
    finally:
        with suppress(OSError):
            remove_tree(folder)
    return written


def export_problem(folder: Path) -> str | None:
    """Why an export in a folder is incomplete, as far as can be seen without reading the weights; None if it seems
    complete."""
    if (folder / MANIFEST).exists():
        return mismatch(folder, only_weights=True, checksums=False)
    return "writing it was interrupted" if (folder / _UNFINISHED).exists() else None


def _write(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    merge_lora: bool,
    keep_predictors: bool,
    records: Records,
) -> tuple[PreTrainedTokenizerBase, int | None]:
    """Write model, predictors and tokenizer; return the written tokenizer and the token that ends an answer."""
    inner = causal_lm(model)
    if inner is not model and not merge_lora:
        if keep_predictors:
            raise ConfigError(
                f"an adapter cannot change the vocabulary, so it cannot hold predictor tokens; merge it "
                f"(--{_NAME.merge_lora} true)"
            )
        _save_adapter(model, folder)
    else:
        weights, rows = _plain_weights(model), trained_extras(inner).predictors
        if rows is not None:
            tokenizer, kept, new = _kept_predictors(tokenizer, inner, keep_predictors)
            if kept:
                _write_rows(inner, weights, kept, rows.weight.detach(), new)
        bare = _bare_model(inner, weights)
        bare.tie_weights()
        # A parameter without its weight is on the meta device, and saving it raises an error.
        bare.save_pretrained(folder)
    template_kwargs = records.settings.get("chat_template_kwargs")
    end = write_generation_config(inner, tokenizer, folder, template_kwargs)
    save_predictors(inner, folder)
    file = folder / SAFE_WEIGHTS_NAME
    if file.is_file() and (folder / PREDICTORS_FILE).is_file():
        # Without an index, vLLM and SGLang load every .safetensors file, including the predictors.
        with safe_open(file, "pt") as weights_file:
            names = dict.fromkeys(weights_file.keys(), file.name)
        write_json(folder / SAFE_WEIGHTS_INDEX_NAME, {"metadata": {}, "weight_map": names})
    tokenizer.save_pretrained(folder)
    return tokenizer, end


def write_generation_config(
    inner: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    template_kwargs: Mapping[str, Any] | None,
) -> int | None:
    """Write a causal LM's generation config, so that the token that ends an answer in training also ends generation. Returns
    that token, or None.

    transformers, vLLM and others stop at the ids in this file, and do not read the chat template.
    """
    renderer = usable_renderer(tokenizer, template_kwargs)
    config = copy.deepcopy(inner.generation_config) or GenerationConfig()
    original = config.eos_token_id
    # `generate` falls back to the model's configuration.
    if original is None:
        original = getattr(text_config(inner.config), "eos_token_id", None)
    ids = stop_ids(original, tokenizer, renderer)
    if ids:
        config.eos_token_id = ids[0] if len(ids) == 1 else ids
    # `save_pretrained` refuses some published configs, such as a temperature without sampling.
    config.to_json_file(folder / GENERATION_CONFIG_NAME, keys_to_pop=["compile_config"])
    return answer_end(tokenizer, renderer)


def _kept_predictors(
    tokenizer: Any, inner: PreTrainedModel, keep: bool
) -> tuple[Any, list[int], bool]:
    """The tokenizer to export, the ids of the predictor tokens in its vocabulary (empty if they are omitted), and whether
    they are new."""
    names = trained_names(inner)
    known = known_predictors(tokenizer, vocabulary_size(inner), names)
    if known or not keep:
        return tokenizer, known, False
    # The caller's tokenizer is not changed.
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.add_tokens(names, special_tokens=True)
    return tokenizer, tokenizer.convert_tokens_to_ids(names), True


def check_keeps_predictors(model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> None:
    """Check before training that the export can write the predictor tokens into the vocabulary.

    Raises:
        ConfigError: another part of the model has the vocabulary's size and cannot grow.
    """
    inner = causal_lm(model)
    rows = trained_extras(inner).predictors
    if rows is None:
        return
    # On the meta device, shapes are checked without memory for the values.
    plain = _plain_weights(model, merge_lora=False)
    weights = {name: torch.empty_like(value, device="meta") for name, value in plain.items()}
    _, kept, new = _kept_predictors(tokenizer, inner, True)
    try:
        _write_rows(inner, weights, kept, rows.weight.detach().to("meta"), new)
        _bare_model(inner, weights)
    except RuntimeError as error:
        what = f"the vocabulary of {type(inner).__name__} cannot grow ({said(error)})"
        raise ConfigError(
            f"predictor tokens cannot be kept: {what}; leave out --{_NAME.keep_predictors}"
        ) from None


def _write_rows(
    inner: PreTrainedModel,
    weights: dict[str, Tensor],
    kept: list[int],
    rows_KD: Tensor,
    new: bool,
) -> None:
    """Write predictor rows (K, D) into the vocabulary of `weights` (any shape), which grows if an id in `kept` needs it.

    In an untied output embedding, `new` tokens get zeros, since they never entered a softmax.
    """
    module, output = inner.get_input_embeddings(), inner.get_output_embeddings()
    embedding, head = (f"{name_of(inner, part)}.weight" for part in (module, output))
    size = max(len(weights[embedding]), max(kept) + 1)
    untied = output is not None and plain_module(output).weight is not plain_module(module).weight
    for name in (embedding, *((head, head.replace(".weight", ".bias")) if untied else ())):
        if name not in weights:
            continue
        value = weights[name].detach()
        value = value if value.is_meta else value.cpu()
        # New rows, including those between the vocabulary and the predictors, start as copies of the last row.
        value = torch.cat([value, value[-1:].expand(size - len(value), *value.shape[1:])])
        if name == embedding:
            value[kept] = rows_KD.to(value)
        elif new:
            value[kept] = 0
        weights[name] = value
    if not untied and head in weights:
        weights[head] = weights[embedding]


def _plain_weights(model: nn.Module, merge_lora: bool = True) -> dict[str, Tensor]:
    """The weights of the causal LM (any shape) under the names of the plain model, with LoRA merged or left out."""
    inner = causal_lm(model)
    weights = {name: value for name, value in inner.state_dict().items() if not is_extra(name)}
    if inner is model:
        return weights
    from peft.tuners.lora import LoraLayer
    from peft.tuners.trainable_tokens import TrainableTokensLayer

    # PEFT itself merges, so all kinds of LoRA work (DoRA, biases, trained token rows). It merges a copy of one layer at a
    # time, so that the model does not change and little memory is needed.
    for name, module in inner.named_modules():
        if not isinstance(module, (LoraLayer, TrainableTokensLayer)):
            continue
        layer: Any = module
        if merge_lora:
            layer = copy.deepcopy(module)
            layer.merge()
        weights = {key: value for key, value in weights.items() if not key.startswith(f"{name}.")}
        plain = name.removesuffix(".token_adapter")
        weights |= {
            f"{plain}.{key}": value for key, value in layer.get_base_layer().state_dict().items()
        }
    return weights


def _bare_model(inner: PreTrainedModel, weights: dict[str, Tensor]) -> PreTrainedModel:
    """A model of the same class with `weights` (by name, any shape), which are not copied."""
    config = copy.deepcopy(inner.config)
    text, embedding = text_config(config), name_of(inner, inner.get_input_embeddings())
    # Only the growth is added, since some models embed more tokens than they predict.
    text.vocab_size += len(weights[f"{embedding}.weight"]) - vocabulary_size(inner)
    # Where the export is loaded, an attention of this library may be unknown.
    if text._attn_implementation in OWN:
        text._attn_implementation = "sdpa"
    with torch.device("meta"):
        bare = type(inner)(config)
    bare.load_state_dict(weights, strict=False, assign=True)
    return bare


def _save_adapter(model: Any, folder: Path) -> None:
    """Write only the LoRA weights, for the unchanged base model."""
    from peft.utils import get_peft_model_state_dict

    weights = get_peft_model_state_dict(model, save_embedding_layers=False)
    # PEFT reads DoRA's magnitudes under two names, `AutoModelForCausalLM.from_pretrained` only under the longer one.
    names = {name: f"{name}.weight" for name in weights if name.endswith("lora_magnitude_vector")}
    weights = {
        names.get(name, name): value.detach().cpu().contiguous() for name, value in weights.items()
    }
    config = copy.deepcopy(model.peft_config[model.active_adapter])
    config.inference_mode = True
    if not config.base_model_name_or_path:
        logger.warning(
            "the base model was made in memory and has no name, so the adapter loads only with "
            "PeftModel.from_pretrained(base, folder); a merged model needs no base"
        )
    config.save_pretrained(folder)
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})


# Exporting a checkpoint, which has the files of training, as the final model of its run


class Export(NamedTuple):
    """An exported model: the folder and its file names."""

    folder: str
    files: list[str]

    def __str__(self) -> str:
        return f"output {self.folder}: {', '.join(self.files)}"


def export_checkpoint(options: ExportOptions) -> Export:
    """Write the files that `JEPATrainer.save_model` writes, with the weights of a checkpoint, and the records of its run.

    The checkpoint is ``checkpoint-N`` of a run, or any folder with a model or an adapter. The default base of an adapter is
    the model that its run trained, or else the one that the adapter names.

    Raises:
        ConfigError: the checkpoint cannot be read, or the output folder cannot be written.
    """
    folder = Path(str(options.checkpoint))
    target = Path(str(options.output_dir))
    trusted = options.trust_remote_code
    adapter = (folder / _ADAPTER).is_file()
    if not (folder / "config.json").is_file() and not adapter:
        raise ConfigError(
            f"{folder}: is not a checkpoint, since it has neither config.json nor {_ADAPTER}"
        )
    # The records are next to the model, or one level up, in the run's folder.
    place = folder.resolve()
    run = place if (place / "run.json").is_file() else place.parent
    is_checkpoint = any(
        (folder / name).is_file() for name in ("resume_record.json", "trainer_state.json")
    )
    if is_checkpoint or (folder / MANIFEST).exists():
        problem = mismatch(folder, only_weights=not is_checkpoint)
        if problem is not None:
            raise ConfigError(f"{folder}: {problem}; use another checkpoint")
    _check_target(target, place, options.overwrite_output_dir)
    # A checkpoint has the Trainer's state, a final model has the metrics; both include the log.
    log = {**read_object(place / "metrics.json"), **read_object(place / "trainer_state.json")}
    records = Records(
        read_object(run / "run.json"),
        read_object(run / "data_report.json"),
        log.get("log_history", ()),
        log.get("global_step", log.get("steps", 0)),
    )
    settings = records.settings
    merge = options.merge_lora
    if merge is None:
        merge = bool(settings.get(_NAME.merge_lora))
    if merge and adapter and (settings.get("load_in_4bit") or settings.get("load_in_8bit")):
        raise ConfigError(
            f"{folder}: was trained on quantised weights, so its adapter cannot be merged; leave out --{_NAME.merge_lora}"
        )

    # Restore the model as it was at the end of training: base, adapter, predictors.
    tokenizer = load_tokenizer(str(folder), trust_remote_code=trusted)
    model: nn.Module
    if adapter:
        base = _load_base(folder, tokenizer, settings, options.base_model, trusted)
        model = adapted = load_adapter(base, folder, str(folder), "its base")
        if merge:
            check_lora(adapted.peft_config["default"], "; merge it with PEFT (merge_and_unload)")
    elif options.base_model is not None:
        raise ConfigError(f"{folder}: is not an adapter; leave out --{_NAME.base_model}")
    else:
        model = load_model(str(folder), tokenizer, dtype="auto", trust_remote_code=trusted)
    attach_saved(causal_lm(model), folder)

    written = export_model(
        model,
        tokenizer,
        target,
        merge_lora=merge,
        keep_predictors=options.keep_predictors,
        records=records,
    )
    # `evaluate` and other commands read from these files how the weights were trained, for example with which system prompt.
    copied = [name for name in ("run.json", "data_report.json") if (run / name).is_file()]
    for name in copied:
        write_whole(target / name, [(run / name).read_bytes()])
    return Export(str(options.output_dir), [*written, *copied])


def _check_target(target: Path, checkpoint: Path, overwrite: bool) -> None:
    if target.resolve() == checkpoint:
        raise ConfigError(f"{target}: is the checkpoint itself; give another output folder")
    if (target / "metrics.json").is_file() or any(target.glob("checkpoint-*")):
        raise ConfigError(
            f"{target}: is the folder of a run, and the export would be mixed with its records; give another output folder"
        )
    # A killed export leaves its folder, which the next one removes.
    entries = target.iterdir() if target.is_dir() else ()
    if not overwrite and any(entry.name != _UNFINISHED for entry in entries):
        raise ConfigError(
            f"{target}: the folder is not empty; give another folder, or --{_NAME.overwrite_output_dir}"
        )
    check_writable(target)


def _load_base(
    folder: Path,
    tokenizer: PreTrainedTokenizerBase,
    run: Mapping[str, Any],
    name: str | None,
    trust_remote_code: bool,
) -> PreTrainedModel:
    """Load the base of an adapter. If its run started from random weights, they are drawn again from the same seed.

    Raises:
        ConfigError: the base is unknown or cannot be loaded.
    """
    named = (
        name
        or run.get("model_name")
        or read_object(folder / _ADAPTER).get("base_model_name_or_path")
    )
    if not named:
        raise ConfigError(f"{folder}: the adapter names no base; give --{_NAME.base_model}")
    return load_model(
        str(named),
        tokenizer,
        pretrain=not name and bool(run.get("pretrain")),
        seed=int(run.get("seed") or 0),
        dtype=run.get("dtype") or "auto",
        trust_remote_code=trust_remote_code,
    )
