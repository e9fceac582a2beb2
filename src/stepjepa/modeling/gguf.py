"""Models in llama.cpp's GGUF form, which transformers reads and dequantises."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import transformers

from stepjepa.config.option import Names
from stepjepa.errors import ConfigError
from stepjepa.modeling.options import ModelOptions
from stepjepa.utils.failures import library

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_NAME = Names(ModelOptions)
GGUF_SUFFIX = ".gguf"
WEIGHTS = (".safetensors", ".bin")
TOKENIZERS = {"tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json"}


def gguf_file(name: str) -> Path | None:
    """The GGUF file that a model's name stands for: the file itself, or the one in a folder without other weights; None for
    any other model.

    Raises:
        ConfigError: several such files, or the package that reads them is not installed.
    """
    path = Path(os.path.expanduser(name))
    if path.suffix == GGUF_SUFFIX and path.is_file():
        files = [path]
    elif path.is_dir() and not any(entry.suffix in WEIGHTS for entry in path.iterdir()):
        files = sorted(path.glob(f"*{GGUF_SUFFIX}"))
    else:
        files = []
    if not files:
        return None
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise ConfigError(f"--{_NAME.model_name} {name}: holds several models ({names}); give the path of one file")
    library("gguf", extra="gguf")
    return files[0]


def model_source(name: str) -> dict[str, Any]:
    """What `from_pretrained` takes for the weights and the configuration of a model; ConfigError as `gguf_file`."""
    file = gguf_file(name)
    if file is None:
        return {"pretrained_model_name_or_path": name}
    return {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}


def tokenizer_source(name: str) -> dict[str, Any]:
    """What `from_pretrained` takes for a tokenizer: one next to a GGUF file comes before the one in it."""
    source = model_source(name)
    folder = Path(source["pretrained_model_name_or_path"])
    if "gguf_file" in source and any((folder / one).is_file() for one in TOKENIZERS):
        del source["gguf_file"]
    return source


def dequantizing() -> dict[str, Any]:
    """What `from_pretrained` takes besides: newer versions of transformers keep the weights quantised without it."""
    config = getattr(transformers, "GgufConfig", None)
    return {} if config is None else {"quantization_config": config(dequantize=True)}


def forget_quantization(model: PreTrainedModel) -> None:
    """Let a dequantised model be trained and saved as any other: transformers keeps a note of how its file was quantised."""
    quantizer: Any = getattr(model, "hf_quantizer", None)
    if quantizer is not None:
        quantizer.remove_quantization_config(model)
    vars(model.config).pop("quantization_config", None)
