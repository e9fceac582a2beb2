"""The tokenizer of the tests here, and the reference values computed elsewhere."""

import pytest
from transformers import AutoTokenizer

from stepjepa.modeling.load import load_tokenizer
from support.rows import step_rows


@pytest.fixture(scope="session")
def tokenizer():
    return load_tokenizer("tiny", (message["content"] for row in step_rows(40) for message in row["messages"]))


@pytest.fixture(scope="session")
def golden(shared_dir):
    """The folder of the reference values."""
    if not (shared_dir / "golden" / "official.json").is_file():
        pytest.skip("no reference values here")
    return shared_dir / "golden"


@pytest.fixture(scope="session")
def golden_tokenizer(golden):
    return AutoTokenizer.from_pretrained(golden / "tokenizer")
