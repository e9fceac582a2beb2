"""Tokenizers of more kinds than `support.tokenizers` has: Llama 4's, and small ones that are trained at once."""

import unicodedata
from functools import cache

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from . import tokenizers as made
from .templates import CHATML, LLAMA4

CHATML_MARKERS = ("<|im_start|>", "<|im_end|>")


@cache
def llama4_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer of Llama 4, 202,048 entries."""
    source = pytest.importorskip("llama_models.llama4.tokenizer", reason="needs the package llama-models")

    def build() -> Tokenizer:
        specials = [*source.BASIC_SPECIAL_TOKENS, *source.LLAMA4_SPECIAL_TOKENS]
        specials += (f"<|reserved_special_token_{number}|>" for number in range(2048 - len(specials)))
        file = made.source_file("llama_models", "llama4/tokenizer.model")
        return made.of_ranks(file, source.Tokenizer.O200K_PATTERN, specials)

    file = str(made._stored("llama4", "llama-models", build))
    names = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot|>", "pad_token": "<|finetune_right_pad|>"}
    return PreTrainedTokenizerFast(
        tokenizer_file=file, chat_template=LLAMA4, clean_up_tokenization_spaces=False, **names
    )


def trained(kind: str, texts: list[str]) -> PreTrainedTokenizerFast:
    """A small tokenizer of one kind, trained on `texts`, with ChatML's markers.

    `gpt2` adds a space in front and trims its offsets; `unigram` writes SentencePiece's marks and folds compatibility forms;
    `wordpiece` drops white space, case and accents, and cleans up what it decodes.
    """
    specials = ["<pad>", "<unk>", *CHATML_MARKERS]
    options = {"special_tokens": specials, "show_progress": False}
    if kind == "gpt2":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        trainer = trainers.BpeTrainer(vocab_size=800, initial_alphabet=alphabet, **options)
    elif kind == "unigram":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=800, unk_token="<unk>", **options)
    elif kind == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece(cleanup=True)
        trainer = trainers.WordPieceTrainer(vocab_size=1200, limit_alphabet=2000, **options)
    else:
        raise KeyError(kind)
    tokenizer.train_from_iterator(texts, trainer)
    names = {"eos_token": "<|im_end|>", "pad_token": "<pad>", "unk_token": "<unk>"}
    settings = {"extra_special_tokens": ["<|im_start|>"], "clean_up_tokenization_spaces": kind == "wordpiece"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=CHATML, **names, **settings)


def without_spaces(text: str) -> str:
    """What SentencePiece's marks do not touch."""
    return text.replace(" ", "")


def folded_and_without_spaces(text: str) -> str:
    """NFKC, without spaces."""
    return unicodedata.normalize("NFKC", text).replace(" ", "")


def bare(text: str) -> str:
    """What BERT's normaliser leaves of a text, without white space."""
    if text.isascii():
        return "".join(text.lower().split())
    letters = unicodedata.normalize("NFD", text).lower()
    kinds = map(unicodedata.category, letters)
    return "".join(
        letter
        for letter, kind in zip(letters, kinds, strict=True)
        if not letter.isspace() and kind != "Mn" and kind[0] != "C"
    )
