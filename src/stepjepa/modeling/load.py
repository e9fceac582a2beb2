"""Loads tokenizers, models (Hub id, local folder, GGUF file, preset, random weights, quantised) and adapters.

Presets are built-in models that need no network: a small Llama from scratch and a tokenizer trained on the data.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
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
from stepjepa.data.sources import near_path
from stepjepa.data.tokens import template_marks, usable_renderer
from stepjepa.errors import ConfigError, RunError, StepJepaError, is_out_of_memory, library, said
from stepjepa.modeling.lora import prepared
from stepjepa.modeling.options import ModelOptions
from stepjepa.modeling.parts import backbone, causal_lm, text_config, vocabulary_size

if TYPE_CHECKING:
    from peft import PeftModel

# The attribute of a model that says whether the user chose its attention; if not, the start-up trial chooses it.
ATTENTION_ASKED = "_stepjepa_attention_asked"
_NAME = Names(ModelOptions)
MODEL = f"--{_NAME.model_name}"
BOS, END, PAD, UNKNOWN = "<|bos|>", "<|end|>", "<|pad|>", "<|unknown|>"
ROLE_MARKERS = ("<|system|>", "<|user|>", "<|assistant|>")

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


class Preset(NamedTuple):
    """A built-in model, a Llama with tied embeddings.

    `vocabulary` is the maximum number of tokens; with `words`, the tokenizer has one token per word instead of byte-level
    BPE. All other fields are those of the configuration."""

    vocabulary: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    initializer_range: float = 0.02
    words: bool = False

    def config(self, tokenizer: PreTrainedTokenizerBase) -> LlamaConfig:
        """The configuration, with the tokenizer's special ids."""
        return LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            initializer_range=self.initializer_range,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )


PRESETS = {
    "micro": Preset(
        512, 64, 172, num_hidden_layers=4, num_attention_heads=4, initializer_range=0.06, words=True
    ),
    "tiny": Preset(
        512, 96, 256, num_hidden_layers=3, num_attention_heads=3, initializer_range=0.06
    ),
    "mini": Preset(2048, 256, 688, num_hidden_layers=6, num_attention_heads=4),
}


def train_tokenizer(
    texts: Iterable[str],
    vocabulary: int,
    markers: Sequence[str] = ROLE_MARKERS,
    chat_template: str = CHAT_TEMPLATE,
    words: bool = False,
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer, trained on `texts`, that splits numbers into digits and has a chat template.

    Args:
        vocabulary: maximum number of tokens, special tokens included.
        markers: special tokens of the template, in addition to BOS and end of turn.
        words: instead of BPE, one token for each word between white space; decoding joins words with single spaces.
    """
    special = [PAD, BOS, END, *markers, *([UNKNOWN] if words else [])]
    common: dict[str, Any] = {
        "vocab_size": vocabulary,
        "special_tokens": special,
        "show_progress": False,
    }
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN) if words else models.BPE())
    if words:
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        trainer: Any = trainers.WordLevelTrainer(**common)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            **common, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        )
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
        # On the left, so that the generated text directly follows the prompt in every row.
        padding_side="left",
    )


def is_preset(name: str) -> bool:
    """Whether `name` is that of a built-in model and not of a local folder."""
    return name in PRESETS and not Path(name).is_dir()


def load_tokenizer(
    name: str, texts: Iterable[str] = (), trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """The tokenizer of a Hub id or local folder; for a preset, a new one trained on `texts`.

    Raises:
        ConfigError: the tokenizer cannot be loaded.
    """
    if is_preset(name):
        return train_tokenizer(texts, PRESETS[name].vocabulary, words=PRESETS[name].words)
    near = nearest(name, PRESETS)
    if near and not os.path.isdir(name):
        # Without this, it would take a minute to report a misspelt preset where the Hub cannot be reached.
        raise ConfigError(f"{MODEL} {name}: no such folder or preset; did you mean {near}?")
    check_local(name)
    source = tokenizer_source(name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(**source, trust_remote_code=trust_remote_code)
        # This class ignores chat templates; its files also load as an ordinary tokenizer.
        if type(tokenizer).__name__ == "MistralCommonBackend":
            tokenizer = AutoTokenizer.from_pretrained(
                **source, mistral_format=False, trust_remote_code=trust_remote_code
            )
        # With some damaged settings, only encoding a text fails.
        tokenizer("text")
    except Exception as error:
        raise _not_loaded("tokenizer", name, error) from None
    return tokenizer


def check_local(name: str) -> None:
    """Refuse ``folder/name`` if the folder exists but has no such entry: a typo, not a Hub id.

    Raises:
        ConfigError: the message names a similar folder.
    """
    path = Path(os.path.expanduser(name))
    if len(path.parts) < 2 or path.exists() or not path.parent.is_dir():
        return
    raise ConfigError(
        f"{MODEL} {name}: no such folder{near_path(path)} (to load a model from the Hub, run this where there is "
        f"no folder {path.parent})"
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
    """Load a causal LM from a Hub id, a folder or a GGUF file, or create one with random weights (`pretrain`, presets).

    Random weights depend only on `seed`. By default, the weights are float32: in pure bfloat16, at a learning rate of 2e-5,
    most updates round to zero (use ``--bf16`` for autocast). A quantised base is frozen. Without `attn_implementation`, the
    start-up trial may choose a faster attention.

    Raises:
        ConfigError: the model cannot be loaded, or its weights are not finite.
    """
    preset = PRESETS[name] if is_preset(name) else None
    random = pretrain or preset is not None
    missing: list[str] = []
    # Random weights have no saved dtype.
    own_dtype = "float32" if random and dtype == "auto" else dtype
    kwargs = dict[str, Any](trust_remote_code=trust_remote_code, dtype=own_dtype)
    if attn_implementation:
        kwargs["attn_implementation"] = attn_implementation
    if not random and os.path.isfile(os.path.join(name, "adapter_config.json")):
        raise ConfigError(
            f"{MODEL} {name}: is a LoRA adapter, and training would start from its base model; merge "
            "it (stepjepa export) and give the folder of the merged model"
        )
    source = {} if preset else model_source(name)
    try:
        config = (
            preset.config(tokenizer)
            if preset
            else AutoConfig.from_pretrained(**source, trust_remote_code=trust_remote_code)
        )
    except Exception as error:
        raise _not_loaded("model", name, error) from None
    # transformers may load only its decoder, with a random embedding.
    if config.is_encoder_decoder:
        raise ConfigError(
            f"{MODEL} {name}: is an encoder-decoder model; give a causal language model, which has only a decoder"
        )
    if quantized is not None:
        kwargs["quantization_config"] = quantized
    elif "gguf_file" in source and not random:
        # Newer versions of transformers would keep the weights quantised.
        config_class = getattr(transformers, "GgufConfig", None)
        if config_class is not None:
            kwargs["quantization_config"] = config_class(dequantize=True)
    try:
        if random:
            set_seed(seed)
            model = AutoModelForCausalLM.from_config(config, **kwargs)
        else:
            # transformers declares only the model.
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                **source, **kwargs, use_safetensors=True, output_loading_info=True
            )
            model, missing = loaded[0], sorted(loaded[1]["missing_keys"])
    except Exception as error:
        raise _not_loaded("model", name, error) from None
    if missing:
        raise ConfigError(
            f"{MODEL} {name}: its files lack {missing[0]} (missing tensors: {len(missing)}), which would be random; give a "
            "complete copy of a causal language model"
        )
    if use_kernels:
        try:
            model.use_kernels = True
        # The package `kernels` is not installed, or too old.
        except (ValueError, ImportError) as error:
            raise ConfigError(f"--{_NAME.use_kernels}: {said(error)}") from error
    object.__setattr__(model, ATTENTION_ASKED, bool(attn_implementation))
    if random:
        # The tokenizer, not the configuration of the published model, decides what ends an answer.
        if tokenizer.eos_token_id is not None:
            model.generation_config.eos_token_id = tokenizer.eos_token_id
        return model
    if "gguf_file" in source:
        forget_quantization(model)
    check_finite(model, f"{MODEL} {name}")
    check_vocabulary(tokenizer, vocabulary_size(model), f"{MODEL} {name}")
    return model if quantized is None else prepared(model)


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, rows: int, name: str) -> None:
    """Refuse a tokenizer with ids beyond the rows of the model's embedding; `name` stands for the model in the message.

    Added tokens count only if the chat template or the tokenizer itself writes them. Others may have no embedding, such as
    the image token of a text model; a row with such a token is skipped (`RowEncoder`).

    Raises:
        ConfigError: the embedding is too small.
    """
    added = tokenizer.get_added_vocab()
    ids = [index for token, index in tokenizer.get_vocab().items() if token not in added]
    ids += [
        tokenizer.eos_token_id,
        tokenizer.bos_token_id,
        tokenizer.pad_token_id,
        *template_marks(tokenizer, usable_renderer(tokenizer)),
    ]
    needed = 1 + max((index for index in ids if index is not None), default=-1)
    if needed > rows:
        raise ConfigError(
            f"{name}: the tokenizer needs {needed:,} embeddings and the model has {rows:,}; give the model its own "
            "tokenizer, or resize it: model.resize_token_embeddings(len(tokenizer))"
        )


def configured_rows(name: str) -> int | None:
    """Rows of a model's embedding, from its configuration only; None if no configuration can be read."""
    try:
        return int(text_config(AutoConfig.from_pretrained(**model_source(name))).vocab_size)
    # No such model, no network, or a configuration that needs remote code.
    except Exception:
        return None


def _not_loaded(what: str, name: str, error: Exception) -> StepJepaError:
    if is_out_of_memory(error):
        return RunError(
            f"{MODEL} {name}: out of memory while the {what} was loaded ({said(error, lines=1)[:200]}); use a smaller "
            f"model, or a lower-precision dtype (--{_NAME.dtype} bfloat16)"
        )
    hint = ""
    if os.path.isdir(name):
        hint = (
            "; the folder must have the files that save_pretrained writes, with weights in safetensors (of a GGUF model, "
            "give the file itself)"
        )
    return ConfigError(
        f"{MODEL} {name}: the {what} cannot be loaded ({said(error, lines=1)}){hint}"
    )


def max_positions(model: PreTrainedModel) -> int | None:
    """Maximum number of positions of a model that learns absolute positions; None for rotary and other relative ones."""
    # The forward of an Unsloth model drops tokens beyond the length that it was loaded for.
    if length := getattr(backbone(causal_lm(model)), "max_seq_length", None):
        return int(length)
    config = text_config(model.config)
    if getattr(config, "rope_parameters", None) or getattr(config, "rope_theta", None):
        return None
    # Some configurations do not mention their rotary positions.
    if any("rotary" in name for name, _ in model.named_modules()):
        return None
    sizes = (getattr(config, key, None) for key in ("n_positions", "max_position_embeddings"))
    return next((int(size) for size in sizes if size), None)


def broken_weights(weights: Mapping[str, Tensor]) -> list[str]:
    """Names of the tensors (any shape) that hold NaN or infinity; one pass over the values, one synchronization."""
    floating = {
        name: value.detach() for name, value in weights.items() if value.is_floating_point()
    }
    if not floating:
        return []
    first = next(iter(floating.values()))
    device = first.device
    # The sum of a tensor with NaN or infinity is not finite, and a sum needs no mask of the tensor's size. The sum of a
    # finite tensor may overflow, so doubtful tensors are tested value by value.
    sums = [value.sum(dtype=torch.float32).to(device) for value in floating.values()]
    finite = torch.stack(sums).isfinite().tolist()
    doubtful = [name for name, is_finite in zip(floating, finite, strict=True) if not is_finite]
    return [name for name in doubtful if not floating[name].isfinite().all()]


def check_finite(model: torch.nn.Module, name: str, part: str = "") -> None:
    """Refuse weights that training has broken. Only parameters with `part` in their names are checked.

    Raises:
        ConfigError: a parameter holds NaN or infinity; the message names the first one.
    """
    weights = {key: value for key, value in model.named_parameters() if part in key}
    if broken := broken_weights(weights):
        raise ConfigError(
            f"{name}: {broken[0]} holds NaN or infinity ({len(broken)} of {len(weights)} tensors do), so its training broke "
            "down and the model is unusable; use an earlier checkpoint, or train again with a lower learning rate"
        )


def load_adapter(
    base: PreTrainedModel, folder: str | os.PathLike[str], name: str, base_name: str
) -> PeftModel:
    """Load the adapter of a folder into a base model; `name` and `base_name` stand for them in a message.

    Raises:
        ConfigError: the adapter does not fit the base, or its weights are not finite.
    """
    from peft import PeftModel

    try:
        # transformers and PEFT warn about their own internals here.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            adapted = PeftModel.from_pretrained(base, str(folder))
    # PEFT, safetensors and torch raise errors of different classes.
    except Exception as error:
        raise ConfigError(f"{name}: the adapter does not fit {base_name} ({said(error)})") from None
    # The base was checked when it was loaded.
    check_finite(adapted, name, part="lora_")
    return adapted


def own_configs(model: PreTrainedModel) -> None:
    """Replace the configurations of a model with copies: other models may share them, and the Trainer writes to them."""
    # Modules that shared a configuration share its copy.
    memo: dict[int, Any] = {}
    for module in model.modules():
        if isinstance(vars(module).get("config"), PreTrainedConfig):
            module.config = copy.deepcopy(module.config, memo)


# Models in the GGUF format of llama.cpp, which transformers reads and dequantises

GGUF_SUFFIX = ".gguf"


def model_source(name: str) -> dict[str, Any]:
    """Arguments of `from_pretrained` for the weights and the configuration of a model.

    Raises:
        ConfigError: the package that reads GGUF files is not installed.
    """
    path = Path(os.path.expanduser(name))
    if path.suffix != GGUF_SUFFIX or not path.is_file():
        return {"pretrained_model_name_or_path": name}
    library("gguf", extra="gguf")
    return {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}


def tokenizer_source(name: str) -> dict[str, Any]:
    """Arguments of `from_pretrained` for a tokenizer; one that `save_pretrained` wrote next to a GGUF file takes
    precedence over the one inside."""
    source = model_source(name)
    folder = Path(source["pretrained_model_name_or_path"])
    if (folder / "tokenizer_config.json").is_file():
        source.pop("gguf_file", None)
    return source


def forget_quantization(model: PreTrainedModel) -> None:
    """Remove transformers' record of how a file was quantised, so that a dequantised model can be trained and saved."""
    quantizer: Any = getattr(model, "hf_quantizer", None)
    if quantizer is not None:
        quantizer.remove_quantization_config(model)
    vars(model.config).pop("quantization_config", None)
