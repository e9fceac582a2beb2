"""The reference values computed elsewhere."""

import pytest
from transformers import AutoTokenizer


@pytest.fixture(scope="session")
def golden(shared_dir):
    """The folder of the reference values."""
    if not (shared_dir / "golden" / "official.json").is_file():
        pytest.skip("no reference values here")
    return shared_dir / "golden"


@pytest.fixture(scope="session")
def golden_tokenizer(golden):
    return AutoTokenizer.from_pretrained(golden / "tokenizer")
