"""The chat templates of real models that TRL's wheel holds, read as data: TRL itself is not imported."""

import importlib.metadata
import re
from functools import cache
from pathlib import Path

import pytest
from tokenizers import AddedToken

# Templates of models of images and text: they read contents in parts, and a text that is none has no characters for them.
IN_PARTS = ("idefics3", "llava_next", "smolvlm")
_MARKER = re.compile(r"<[|\uff5c]?[a-zA-Z][\w \u2581|.\uff5c]*[|\uff5c]?>|\[/?[A-Z_]+\]")


@cache
def templates() -> dict[str, str]:
    """Name -> text of each; none where TRL is not installed, or one that holds none."""
    try:
        distribution = importlib.metadata.distribution("trl")
    except importlib.metadata.PackageNotFoundError:
        return {}
    folder = Path(str(distribution.locate_file("trl/chat_templates")))
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.jinja"))}


def template(name: str) -> str:
    """The text of one; the test is skipped without it."""
    if name not in templates():
        pytest.skip(f"no template {name}: no TRL that holds it is installed")
    return templates()[name]


def tokenizer_with(text: str):
    """A small byte-level tokenizer with this template; the markers that the template names are added tokens."""
    from .tokenizers import byte_bpe_tokenizer, fresh

    tokenizer = fresh(byte_bpe_tokenizer())
    markers = sorted(set(_MARKER.findall(text)))
    tokenizer.add_tokens([AddedToken(one, normalized=False, special="think" not in one) for one in markers])
    tokenizer.chat_template = text
    return tokenizer
