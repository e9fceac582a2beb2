"""Real tokenizers for the tests, built from the model files that installed packages carry.

Nothing is downloaded; a missing package skips the test that asks. The functions return one shared object per process: tests
that change a tokenizer change a `fresh` copy.
"""

import copy
from functools import cache
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter, generate_merges
from transformers.integrations.mistral import convert_tekken_tokenizer

from .templates import FORMATS

MARK = "\u2581"  # what SentencePiece writes for a space

LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


SENTENCES = (
    "Add the two numbers first.\n\nThen take away the third one.\n\nSo the answer is 17.",
    "12 + 5 = 17.\n\nSo there are 17 apples in the basket.",
    "The cost of the house and repairs is 80,000 + 50,000 = 130,000 dollars.\n\nHe made a profit of 70,000.",
    "In May she sold 48 / 2 = 24 clips.\n\nAltogether she sold 48 + 24 = 72 clips.\n\n#### 72",
    "Each child gets 36 / 9 = 4 apples.\n\nThe answer is 4.",
    "Step 1: Find the hours.\n\nStep 2: Multiply by the price per hour.\n\nStep 3: Write the answer.",
    "It goes 60 * 3 = 180 miles in three hours.\n\nTherefore the distance is 180 miles.",
    "You are a helpful assistant. Answer the question and show your steps.",
    "Please solve the problem step by step, and put your final answer within \\boxed{}.",
    "If x + 3 = 10, then x = 10 - 3 = 7.\n\nWe check that 7 + 3 = 10.",
)


@cache
def llama3_tokenizer(template: str = "llama3") -> PreTrainedTokenizerFast:
    """The tokenizer of Llama 3.1 and 3.2, 128,256 entries; other templates' markers come behind them."""
    if template != "llama3":
        return with_template(llama3_tokenizer(), template)
    return _wrap(_build_llama3(), template, bos_token="<|begin_of_text|>", pad_token="<|finetune_right_pad_id|>")


@cache
def mistral_sentencepiece_tokenizer(version: str = "v3") -> PreTrainedTokenizerFast:
    """Mistral 7B's tokenizer: "v1" (32,000 entries), which puts a space mark before every stretch of text between special
    tokens, or "v3" (32,768; `[INST]` is a control token), which puts one at the very beginning only."""
    template = {"v1": "mistral_v1", "v3": "mistral"}[version]
    return _wrap(_build_sentencepiece(version), template, bos_token="<s>", unk_token="<unk>", padding_side="left")


@cache
def tekken_tokenizer() -> PreTrainedTokenizerFast:
    """Mistral's Tekken tokenizer (131,072 entries): one digit a token, `.\\n\\n` one token."""
    return _wrap(_build_tekken(), "mistral_tekken", bos_token="<s>", unk_token="<unk>", pad_token="<pad>")


@cache
def byte_bpe_tokenizer(template: str = "chatml") -> PreTrainedTokenizerFast:
    """A byte-level BPE trained on `SENTENCES`: `<pad>`, `<s>`, the template's markers, 256 bytes, up to 600 entries."""
    form = FORMATS[template]
    tokenizer = Tokenizer(models.BPE())
    _set_byte_level(tokenizer, LLAMA3_PATTERN)
    trainer = BpeTrainer(
        vocab_size=600,
        special_tokens=list(dict.fromkeys(["<pad>", "<s>", *form.markers])),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    settings = {"clean_up_tokenization_spaces": False, "model_max_length": 4096, "chat_template": form.template}
    names = {"bos_token": "<s>", "eos_token": form.eos, "pad_token": "<pad>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **settings, **names)


def fresh(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """A copy that a test may change (half a second for the large vocabularies)."""
    return copy.deepcopy(tokenizer)


def ids_of(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def with_template(tokenizer: PreTrainedTokenizerFast, name: str) -> PreTrainedTokenizerFast:
    """A copy with the template `name` of `templates.FORMATS`, its markers as special tokens, and its EOS."""
    form = FORMATS[name]
    out = fresh(tokenizer)
    missing = [marker for marker in form.markers if marker not in out.get_vocab()]
    out.add_tokens(_special(missing), special_tokens=True)
    if form.eos is not None:
        out.eos_token = form.eos
    out.chat_template = form.template
    return out


def special_id(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    """The id of a special token, by name; an error where the vocabulary lacks it."""
    found = tokenizer.convert_tokens_to_ids(token)
    if found is None or tokenizer.convert_ids_to_tokens(found) != token:
        raise KeyError(token)
    return found


def _wrap(tokenizer: Tokenizer, template: str, **names: str) -> PreTrainedTokenizerFast:
    form = FORMATS[template]
    settings = {"clean_up_tokenization_spaces": False, "model_max_length": 131072, **names}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, chat_template=form.template, eos_token=form.eos, **settings
    )


def source_file(package: str, pattern: str) -> Path:
    """The first file under a package's folder that fits the pattern; without one the test is skipped."""
    found = sorted(Path(pytest.importorskip(package).__file__).parent.glob(pattern))
    if not found:
        pytest.skip(f"this version of {package} holds no {pattern}")
    return found[0]


def _with_bos(tokenizer: Tokenizer, token: str) -> Tokenizer:
    """A converted byte-level tokenizer that writes this token in front."""
    tokenizer.post_processor = processors.Sequence([tokenizer.post_processor, _bos(tokenizer, token)])
    return tokenizer


def _set_byte_level(tokenizer: Tokenizer, pattern: str) -> None:
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, letters])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)


def _special(tokens: list[str]) -> list[AddedToken]:
    return [AddedToken(token, normalized=False, special=True) for token in tokens]


def _bos(tokenizer: Tokenizer, token: str) -> processors.TemplateProcessing:
    single, pair = f"{token} $A", f"{token} $A {token}:1 $B:1"
    special = [(token, tokenizer.token_to_id(token))]
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=special)


def _build_llama3() -> Tokenizer:
    specials = [f"<|reserved_special_token_{number}|>" for number in range(248)]
    named = {0: "begin_of_text", 1: "end_of_text", 4: "finetune_right_pad_id", 6: "start_header_id"}
    named |= {7: "end_header_id", 8: "eom_id", 9: "eot_id", 10: "python_tag"}
    for number, name in sorted(named.items()):
        specials.insert(number, f"<|{name}|>")
    file = source_file("llama_models", "llama3/tokenizer.model")
    converter = TikTokenConverter(str(file), LLAMA3_PATTERN, extra_special_tokens=specials)
    return _with_bos(converter.converted(), "<|begin_of_text|>")


def _build_tekken() -> Tokenizer:
    file = source_file("mistral_common", "data/tekken_*.json")
    return _with_bos(convert_tekken_tokenizer(str(file)).backend_tokenizer, "<s>")


def _build_sentencepiece(version: str) -> Tokenizer:
    pytest.importorskip("google.protobuf", reason="needs the package protobuf")
    pytest.importorskip("sentencepiece", reason="needs the package sentencepiece")
    from sentencepiece import sentencepiece_model_pb2 as schema

    file = source_file("mistral_common", f"data/*.model.{version}")
    proto = schema.ModelProto.FromString(file.read_bytes())
    kinds = schema.ModelProto.SentencePiece
    vocab = {piece.piece: number for number, piece in enumerate(proto.pieces)}
    merges = generate_merges(vocab, {piece.piece: piece.score for piece in proto.pieces})
    bpe = models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(bpe)
    if version == "v1":
        steps = [normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)]
        tokenizer.normalizer = normalizers.Sequence(steps)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(MARK, prepend_scheme="first", split=False)
    steps = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(content=" ", left=1)]
    tokenizer.decoder = decoders.Sequence(steps)
    for piece in proto.pieces:
        if piece.type in (kinds.CONTROL, kinds.UNKNOWN, kinds.USER_DEFINED):
            special = piece.type != kinds.USER_DEFINED
            tokenizer.add_tokens([AddedToken(piece.piece, normalized=False, special=special)])
    tokenizer.post_processor = _bos(tokenizer, "<s>")
    return tokenizer
