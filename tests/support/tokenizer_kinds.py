"""Tokenizers of every kind: published ones, trained ones, and slow ones, which say nothing about offsets.

The trained and the slow ones are small and made at once; the published ones come from installed packages, as in
`support.tokenizers`.
"""

from __future__ import annotations

import base64
import shutil
import unicodedata
from functools import cache
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast
from transformers.tokenization_python import PythonBackend

from . import tokenizers as made
from .templates import CHATML, LLAMA4

CHATML_MARKERS = ("<|im_start|>", "<|im_end|>")


@cache
def llama4_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer of Llama 4, 202,048 entries."""
    source = pytest.importorskip("llama_models.llama4.tokenizer", reason="needs the package llama-models")

    def build() -> Tokenizer:
        lines = made.source_file("llama_models", "llama4/tokenizer.model").read_bytes().splitlines()
        ranks = {base64.b64decode(piece): int(rank) for piece, rank in map(bytes.split, lines)}
        specials = [*source.BASIC_SPECIAL_TOKENS, *source.LLAMA4_SPECIAL_TOKENS]
        specials += (f"<|reserved_special_token_{number}|>" for number in range(2048 - len(specials)))
        pattern = source.Tokenizer.O200K_PATTERN
        return made._byte_level(ranks, pattern, specials, "<|begin_of_text|>", first_id=0)

    return PreTrainedTokenizerFast(
        tokenizer_file=str(made._stored("llama4", "llama-models", build)),
        chat_template=LLAMA4,
        bos_token="<|begin_of_text|>",
        eos_token="<|eot|>",
        pad_token="<|finetune_right_pad|>",
        clean_up_tokenization_spaces=False,
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
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=CHATML,
        eos_token="<|im_end|>",
        pad_token="<pad>",
        unk_token="<unk>",
        extra_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=kind == "wordpiece",
    )


class SlowTwin(PythonBackend):
    """A slow tokenizer that does in Python what a fast one does, under names that say everything.

    Splitting at added tokens is the slow machinery's own.
    """

    def __init__(self, fast: PreTrainedTokenizerFast):
        self.fast = fast
        added = dict(fast.added_tokens_decoder)
        super().__init__(
            added_tokens_decoder=added, eos_token=fast.eos_token, unk_token=fast.unk_token, bos_token=fast.bos_token
        )
        self.chat_template = fast.chat_template

    @property
    def vocab_size(self):
        return self.fast.vocab_size

    def get_vocab(self):
        return self.fast.get_vocab()

    def _tokenize(self, text, **kwargs):
        return self.fast.tokenize(text)

    def _convert_token_to_id(self, token):
        return self.fast.convert_tokens_to_ids(token)

    def _convert_id_to_token(self, index):
        return self.fast.convert_ids_to_tokens(index)

    def convert_tokens_to_string(self, tokens):
        return self.fast.backend_tokenizer.decoder.decode(tokens)


class Nameless(SlowTwin):
    """A slow tokenizer whose tokens have numbers for names, so that only decoding tells what they say (tiktoken)."""

    def _tokenize(self, text, **kwargs):
        return [f"#{index}" for index in self.fast(text, add_special_tokens=False)["input_ids"]]

    def _convert_token_to_id(self, token):
        return int(token[1:])

    def _convert_id_to_token(self, index):
        return f"#{index}"

    def convert_tokens_to_string(self, tokens):
        own = self._added_tokens_encoder
        ids = [own[token] if token in own else int(token[1:]) for token in tokens]
        return self.fast.decode(ids, clean_up_tokenization_spaces=False)


class Bytes(Nameless):
    """The same with bytes for names (the first Qwen's)."""

    def _tokenize(self, text, **kwargs):
        return self.convert_ids_to_tokens(self.fast(text, add_special_tokens=False)["input_ids"])

    def _convert_token_to_id(self, token):
        letters = made.bytes_to_unicode()
        return self.fast.convert_tokens_to_ids("".join(letters[byte] for byte in token))

    def _convert_id_to_token(self, index):
        bytes_of = {letter: byte for byte, letter in made.bytes_to_unicode().items()}
        return bytes(bytes_of[letter] for letter in self.fast.convert_ids_to_tokens(index))

    def convert_tokens_to_string(self, tokens):
        pieces = (token if isinstance(token, bytes) else token.encode() for token in tokens)
        return b"".join(pieces).decode(errors="replace")


class Letters(PythonBackend):
    """One token a character, as tutorials write it: decoding puts spaces between the tokens."""

    def __init__(self):
        super().__init__(eos_token="<|im_end|>", extra_special_tokens=["<|im_start|>"], chat_template=CHATML)

    @property
    def vocab_size(self):
        return 0x10000

    def get_vocab(self):
        return {chr(code): code for code in range(self.vocab_size)} | self.added_tokens_encoder

    def _tokenize(self, text, **kwargs):
        return list(text)

    def _convert_token_to_id(self, token):
        return ord(token) if len(token) == 1 else None

    def _convert_id_to_token(self, index):
        return chr(index)


class Liar(Letters):
    """A tokenizer that drops a letter: no offsets can be found for it."""

    def _tokenize(self, text, **kwargs):
        return [letter for letter in text if letter != "o"]


def byt5_tokenizer() -> ByT5Tokenizer:
    """One token a byte, with ChatML's markers."""
    tokenizer = ByT5Tokenizer(extra_ids=0, chat_template=CHATML)
    tokenizer.add_tokens(list(CHATML_MARKERS), special_tokens=True)
    return tokenizer


def sentencepiece_tokenizer(version: str, folder: Path, legacy: bool):
    """Mistral 7B's tokenizer in transformers' slow SentencePiece class. `legacy` adds a space in front of every stretch."""
    pytest.importorskip("sentencepiece", reason="needs the package sentencepiece")
    from transformers.tokenization_utils_sentencepiece import SentencePieceBackend

    file = folder / f"{version}.model"
    shutil.copy(made.source_file("mistral_common", f"data/*.model.{version}"), file)
    return SentencePieceBackend(
        vocab_file=str(file), legacy=legacy, bos_token="<s>", eos_token="</s>", unk_token="<unk>", chat_template=CHATML
    )


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
