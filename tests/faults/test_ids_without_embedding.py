"""Token ids beyond the model's embedding would be read as predictor tokens, or fail in the middle of training."""

from __future__ import annotations

import pytest

from stepjepa import check
from stepjepa.errors import ConfigError, DataError
from stepjepa.modeling.load import load_model
from support.models import tiny_model
from support.rows import step_rows
from support.tokenizers import byte_bpe_tokenizer, fresh
from support.training import STEPS, trainer_for


@pytest.fixture(scope="module")
def plain():
    return byte_bpe_tokenizer("chatml")


def grown(plain, *tokens):
    tokenizer = fresh(plain)
    tokenizer.add_tokens(list(tokens), special_tokens=True)
    return tokenizer


@pytest.mark.parametrize("what", ["eos", "template"])
def test_a_tokenizer_that_has_grown_without_its_model(what, plain, tmp_path):
    tokenizer, size = grown(plain, "<|end_of_turn|>"), len(plain)
    if what == "eos":
        tokenizer.eos_token = "<|end_of_turn|>"
    else:
        tokenizer.chat_template = tokenizer.chat_template.replace("<|im_end|>", "<|end_of_turn|>")
    model = tiny_model("llama", vocab_size=size)
    expected = f"the tokenizer needs {size + 1:,} embeddings and the model has {size:,}"
    with pytest.raises(ConfigError, match=expected):
        trainer_for(tmp_path, tokenizer, step_rows(8), model=model, predictors=1, **STEPS)
    model.save_pretrained(tmp_path / "m")
    tokenizer.save_pretrained(tmp_path / "m")
    with pytest.raises(ConfigError, match=expected):
        load_model(str(tmp_path / "m"), tokenizer)
    with pytest.raises(ConfigError, match=expected):
        check(step_rows(8), tmp_path / "m")


def test_a_row_with_such_a_token_is_skipped(plain, tmp_path):
    """As the image token of a model for text, which the tokenizer alone knows."""
    tokenizer, rows = grown(plain, "<image>"), step_rows(8)
    rows[3]["messages"][-2]["content"] += " <image>"
    model = tiny_model("llama", vocab_size=len(plain))
    trainer = trainer_for(tmp_path, tokenizer, rows, model=model, predictors=1, **STEPS)
    report = trainer.data_reports["train"]
    assert report.rows_kept == 7 and dict(report.rows_skipped) == {"no_embedding": 1}
    assert f"<image> has id {len(plain)}, and the model has {len(plain)} embeddings" in "".join(report.lines())
    model.save_pretrained(tmp_path / "m")
    tokenizer.save_pretrained(tmp_path / "m")
    assert check(rows, tmp_path / "m").tokens.data.rows_skipped["no_embedding"] == 1
    with pytest.raises(DataError, match="a token for which the model has no embedding"):
        trainer_for(tmp_path, tokenizer, rows[3:4], model=model, predictors=1, **STEPS)
