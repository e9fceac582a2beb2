"""Built-in models that need no network: a small Llama from scratch and a tokenizer trained on the data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, PreTrainedTokenizerFast

BOS, END, PAD = "<|bos|>", "<|end|>", "<|pad|>"
ROLE_MARKERS = ("<|system|>", "<|user|>", "<|assistant|>")

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


@dataclass(frozen=True)
class Preset:
    """Sizes of a built-in model: a Llama with tied embeddings and a byte-level BPE tokenizer."""

    hidden_size: int
    layers: int
    heads: int
    intermediate_size: int
    vocabulary: int
    initializer_range: float = 0.02
    max_positions: int = 2048


PRESETS = {
    "tiny": Preset(hidden_size=96, layers=3, heads=3, intermediate_size=256, vocabulary=512, initializer_range=0.06),
    "mini": Preset(hidden_size=256, layers=6, heads=4, intermediate_size=688, vocabulary=2048),
}


def train_tokenizer(
    texts: Iterable[str],
    vocabulary: int,
    markers: Sequence[str] = ROLE_MARKERS,
    chat_template: str = CHAT_TEMPLATE,
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with single digits and a chat template, trained on `texts`.

    Args:
        texts: message contents.
        vocabulary: entries at most, special tokens included.
        markers: special tokens that the template writes, beside the BOS and the end of turn.
        chat_template: Jinja.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [PAD, BOS, END, *markers]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=END,
        pad_token=PAD,
        extra_special_tokens=list(markers),
        chat_template=chat_template,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )


def preset_config(preset: Preset, tokenizer: Any) -> LlamaConfig:
    """The Llama configuration of a preset, with the tokenizer's special ids."""
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=preset.hidden_size,
        intermediate_size=preset.intermediate_size,
        num_hidden_layers=preset.layers,
        num_attention_heads=preset.heads,
        num_key_value_heads=preset.heads,
        max_position_embeddings=preset.max_positions,
        initializer_range=preset.initializer_range,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
