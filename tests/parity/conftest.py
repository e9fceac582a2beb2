"""The tokenizer of the tests here."""

import pytest

from stepjepa.modeling.load import load_tokenizer
from support.rows import step_rows


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("tiny", (message["content"] for row in step_rows(40) for message in row["messages"]))
