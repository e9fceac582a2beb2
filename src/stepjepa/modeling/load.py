"""Loading: tokenizers and models (Hub id, local folder, GGUF file, preset, random weights, quantised), with an adapter.

Presets are built-in models that need no network: a small Llama from scratch and a tokenizer trained on the data.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    set_seed,
)

from stepjepa.config.option import Names
from stepjepa.config.values import nearest
from stepjepa.data.tokens import template_marks
from stepjepa.errors import ConfigError, RunError, StepJepaError, is_out_of_memory, library, said
from stepjepa.modeling.lora import prepared
from stepjepa.modeling.options import ModelOptions
from stepjepa.modeling.parts import backbone, causal_lm, text_config, vocabulary_size

if TYPE_CHECKING:
    from peft import PeftModel

ATTENTION_ASKED = "_stepjepa_attention_asked"  # on the model
_NAME = Names(ModelOptions)
MODEL = f"--{_NAME.model_name}"
# What a folder must hold to be a model here: by `_PARTS` in words, by the ends or names of files.
_PARTS = {"model": "weights (model.safetensors)", "tokenizer": "tokenizer (tokenizer.json, tokenizer_config.json)"}
BOS, END, PAD, UNKNOWN = "<|bos|>", "<|end|>", "<|pad|>", "<|unknown|>"
ROLE_MARKERS = ("<|system|>", "<|user|>", "<|assistant|>")

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


@dataclass(frozen=True)
class Preset:
    """A built-in model: entries of its tokenizer at most, whether that has a token a word (else byte-level BPE), and the
    sizes of a Llama with tied embeddings, by the names of its configuration."""

    vocabulary: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    initializer_range: float = 0.02
    words: bool = False

    def config(self, tokenizer: PreTrainedTokenizerBase) -> LlamaConfig:
        """The configuration, with the tokenizer's special ids."""
        own: dict[str, Any] = {name: value for name, value in vars(self).items() if name not in ("vocabulary", "words")}
        own |= {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
        return LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=2048, tie_word_embeddings=True, **own)


PRESETS = {
    "micro": Preset(512, 64, 172, num_hidden_layers=4, num_attention_heads=4, initializer_range=0.06, words=True),
    "tiny": Preset(512, 96, 256, num_hidden_layers=3, num_attention_heads=3, initializer_range=0.06),
    "mini": Preset(2048, 256, 688, num_hidden_layers=6, num_attention_heads=4),
}


def train_tokenizer(
    texts: Iterable[str],
    vocabulary: int,
    markers: Sequence[str] = ROLE_MARKERS,
    chat_template: str = CHAT_TEMPLATE,
    words: bool = False,
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with single digits and a chat template, trained on `texts`.

    Args:
        vocabulary: entries at most, special tokens included.
        markers: special tokens that the template writes, next to the BOS and the end of turn.
        words: a token for each word between white space instead, which is decoded as one space.
    """
    special = [PAD, BOS, END, *markers, *([UNKNOWN] if words else [])]
    common: dict[str, Any] = {"vocab_size": vocabulary, "special_tokens": special, "show_progress": False}
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN) if words else models.BPE())
    if words:
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        trainer: Any = trainers.WordLevelTrainer(**common)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(**common, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=END,
        pad_token=PAD,
        unk_token=UNKNOWN if words else None,
        extra_special_tokens=list(markers),
        chat_template=chat_template,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )


def is_preset(name: str) -> bool:
    """Whether `name` is a built-in model and no folder here."""
    return name in PRESETS and not Path(name).is_dir()


def load_tokenizer(name: str, texts: Iterable[str] = (), trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """The tokenizer of a Hub id or local folder; for a preset, one trained on `texts`.

    Raises:
        ConfigError: it cannot be loaded.
    """
    if is_preset(name):
        return train_tokenizer(texts, PRESETS[name].vocabulary, words=PRESETS[name].words)
    near = nearest(name, PRESETS)
    if near and not os.path.isdir(name):
        # A Hub that does not answer would take a minute to say that there is no such model.
        raise ConfigError(f"{MODEL} {name}: no such folder or preset; did you mean {near}?")
    check_local(name)
    source = tokenizer_source(name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(**source, trust_remote_code=trust_remote_code)
        if type(tokenizer).__name__ == "MistralCommonBackend":  # reads no chat template; its files also load as usual
            tokenizer = AutoTokenizer.from_pretrained(
                **source, mistral_format=False, trust_remote_code=trust_remote_code
            )
    except Exception as error:
        raise _not_loaded("tokenizer", name, error) from None
    return tokenizer


def check_local(name: str) -> None:
    """Refuse ``folder/name`` where there is such a folder and nothing of that name in it: a slip, not a Hub id.

    Raises:
        ConfigError: it names what there is.
    """
    path = Path(os.path.expanduser(name))
    if len(path.parts) < 2 or path.exists() or not path.parent.is_dir():
        return
    there = sorted(entry.name for entry in path.parent.iterdir() if entry.is_dir())
    near = nearest(path.name, there)
    hint = f"; did you mean {path.parent / near}?" if near else ""
    raise ConfigError(
        f"{MODEL} {name}: no such folder{hint} (for a model of the Hub, start where there is no folder {path.parent})"
    )


def load_model(
    name: str,
    tokenizer: PreTrainedTokenizerBase,
    *,
    pretrain: bool = False,
    seed: int = 42,
    dtype: str = "float32",
    attn_implementation: str | None = None,
    trust_remote_code: bool = False,
    use_kernels: bool = False,
    quantized: BitsAndBytesConfig | None = None,
) -> PreTrainedModel:
    """A causal LM: from a Hub id, a folder or a GGUF file with its weights, or with random weights (`pretrain`, presets).

    Random weights depend on `seed` alone. Master weights are float32 unless asked otherwise (with pure bfloat16 weights
    and a learning rate of 2e-5 most updates round to nothing; use ``--bf16`` for autocast). A quantised base is frozen.
    It is trained with the attention that is asked for; without one the start-up trial may choose a faster one.

    Raises:
        ConfigError: it cannot be loaded, or its weights are not finite.
    """
    random = is_preset(name) or pretrain
    own_dtype = "float32" if random and dtype == "auto" else dtype
    kwargs = dict[str, Any](trust_remote_code=trust_remote_code, dtype=own_dtype)
    if attn_implementation:
        kwargs["attn_implementation"] = attn_implementation
    if not random and os.path.isfile(os.path.join(name, "adapter_config.json")):
        raise ConfigError(
            f"{MODEL} {name}: is a LoRA adapter, and training on it would start from its base; merge "
            "it (stepjepa export) and give that folder"
        )
    if not is_preset(name):
        _check_decoder(name, trust_remote_code)
    source = {} if is_preset(name) else model_source(name)
    if quantized is not None:
        kwargs["quantization_config"] = quantized
    elif "gguf_file" in source and not random:
        kwargs |= dequantizing()
    try:
        if random:
            preset = PRESETS[name].config(tokenizer) if is_preset(name) else None
            config = preset or AutoConfig.from_pretrained(**source, trust_remote_code=trust_remote_code)
            set_seed(seed)
            model = AutoModelForCausalLM.from_config(config, **kwargs)
        else:
            model = AutoModelForCausalLM.from_pretrained(**source, **kwargs)
    except Exception as error:
        raise _not_loaded("model", name, error) from None
    if use_kernels:
        try:
            model.use_kernels = True
        except (ValueError, ImportError) as error:  # the package is not installed, or too old
            raise ConfigError(f"--{_NAME.use_kernels}: {said(error)}") from error
    object.__setattr__(model, ATTENTION_ASKED, bool(attn_implementation))
    if random:
        if tokenizer.eos_token_id is not None:
            model.generation_config.eos_token_id = tokenizer.eos_token_id
        return model
    if "gguf_file" in source:
        forget_quantization(model)
    check_finite(model, f"{MODEL} {name}")
    check_vocabulary(tokenizer, vocabulary_size(model), f"{MODEL} {name}")
    return model if quantized is None else prepared(model)


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, rows: int, name: str) -> None:
    """Refuse a tokenizer that writes ids beyond the rows of the model's embedding; `name` is the model's in the message.

    Of added tokens only those count that any text may get, and those that the chat template writes. Others may have no
    embedding, as the image token of a model for text; a row with such a token is skipped (`RowEncoder`).

    Raises:
        ConfigError: the embedding is too small.
    """
    added = tokenizer.get_added_vocab()
    ids = [index for token, index in tokenizer.get_vocab().items() if token not in added]
    ids += [tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id, *template_marks(tokenizer)]
    needed = 1 + max((index for index in ids if index is not None), default=-1)
    if needed > rows:
        raise ConfigError(
            f"{name}: the tokenizer needs {needed:,} embeddings and the model has {rows:,}; give the model its own "
            "tokenizer, or resize it: model.resize_token_embeddings(len(tokenizer))"
        )


def configured_rows(name: str) -> int | None:
    """Rows of a model's embedding by its configuration alone; None where there is no configuration that can be read."""
    try:
        return int(text_config(AutoConfig.from_pretrained(**model_source(name))).vocab_size)
    except Exception:  # no such model, no network, code of its own
        return None


def _not_loaded(what: str, name: str, error: Exception) -> StepJepaError:
    if is_out_of_memory(error):
        return RunError(
            f"{MODEL} {name}: out of memory while the {what} was loaded ({said(error, lines=1)[:200]}); use a smaller "
            f"model, or weights of fewer bytes (--{_NAME.dtype} bfloat16)"
        )
    reason = f"the {what} cannot be loaded ({said(error, lines=1)})"
    folder = Path(name)
    if folder.is_dir():
        names = [path.name for path in folder.iterdir()]
        held = any(one.endswith(WEIGHTS) for one in names) if what == "model" else TOKENIZERS.intersection(names)
        reason += "; the folder must hold what save_pretrained writes"
        if not held:
            reason = f"the folder holds no {_PARTS[what]}, as save_pretrained writes them"
    return ConfigError(f"{MODEL} {name}: {reason}")


def _check_decoder(name: str, trust_remote_code: bool) -> None:
    """Refuse an encoder-decoder, of which transformers may load the decoder alone, with an embedding of random values.

    Raises:
        ConfigError: it is one.
    """
    config = None
    with suppress(Exception):  # loading the model reports it
        config = AutoConfig.from_pretrained(**model_source(name), trust_remote_code=trust_remote_code)
    if getattr(config, "is_encoder_decoder", False):
        raise ConfigError(
            f"{MODEL} {name}: is an encoder-decoder; give a causal language model, which has a decoder alone"
        )


def max_positions(model: PreTrainedModel) -> int | None:
    """Positions that a model with learned absolute positions has; None for rotary and other relative ones.

    A model of Unsloth has as many as it was loaded for: its forward leaves out what is beyond.
    """
    if length := getattr(backbone(causal_lm(model)), "max_seq_length", None):
        return int(length)
    config = text_config(model.config)
    if getattr(config, "rope_parameters", None) or getattr(config, "rope_theta", None):
        return None
    if any("rotary" in name for name, _ in model.named_modules()):
        return None
    sizes = (getattr(config, key, None) for key in ("n_positions", "max_position_embeddings"))
    return next((int(size) for size in sizes if size), None)


def broken_weights(weights: Mapping[str, torch.Tensor]) -> list[str]:
    """Names of the tensors (of any shape) that hold NaN or infinity. One pass, one synchronization."""
    floating = {name: value.detach() for name, value in weights.items() if value.is_floating_point()}
    if not floating:
        return []
    first = next(iter(floating.values()))
    device = first.device
    # A sum is finite where all its terms are, and needs no copy of the tensor; should it overflow, the terms decide.
    sums = [value.sum(dtype=torch.float32).to(device) for value in floating.values()]
    finite = torch.stack(sums).isfinite().tolist()
    doubtful = [name for name, is_finite in zip(floating, finite, strict=True) if not is_finite]
    return [name for name in doubtful if not floating[name].isfinite().all()]


def check_finite(model: torch.nn.Module, name: str, part: str = "") -> None:
    """Refuse weights that training has broken: what they give is no result. Only parameters with `part` in their name are
    looked at.

    Raises:
        ConfigError: a parameter holds NaN or infinity; the message names the first one.
    """
    weights = {key: value for key, value in model.named_parameters() if part in key}
    if broken := broken_weights(weights):
        raise ConfigError(
            f"{name}: {broken[0]} holds NaN or infinity ({len(broken)} of {len(weights)} tensors do), so its training broke "
            "and it can answer nothing; take an earlier checkpoint, or train again with a lower learning rate"
        )


def load_adapter(base: PreTrainedModel, folder: str | os.PathLike[str], name: str, base_name: str) -> PeftModel:
    """A base model inside PEFT, with the adapter of a folder; `name` and `base_name` are theirs in a message.

    Raises:
        ConfigError: the adapter does not fit the base, or its weights are not finite.
    """
    from peft import PeftModel

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of transformers and PEFT about themselves
            adapted = PeftModel.from_pretrained(base, str(folder))
    except Exception as error:  # peft, safetensors and torch raise their own
        if is_out_of_memory(error):
            raise _not_loaded("adapter", name, error) from None
        raise ConfigError(f"{name}: the adapter does not fit {base_name} ({said(error)})") from None
    check_finite(adapted, name, part="lora_")  # the base was looked at when it was loaded
    return adapted


def own_configs(model: PreTrainedModel) -> None:
    """Give a model configurations of its own, equal to those it has: other models may have been made from the same objects,
    and the Trainer writes to them."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        if isinstance(vars(module).get("config"), PreTrainedConfig):
            module.config = copy.deepcopy(module.config, memo)


# Models in llama.cpp's GGUF form, which transformers reads and dequantises

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
