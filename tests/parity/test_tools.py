"""Rows with tools: the packed forest equals separate passes, in value and gradient, under templates that know tools."""

import pytest

from support.objectives import assert_same_losses, in_one_row, losses, prepare
from support.tool_rows import CHATS, row, tool_tokenizer

ROWS = [row(CHATS[name]) for name in ("one call", "call alone", "two calls", "two turns", "system")]
CASES = (
    {"objective": "llm_jepa", "predictors": 2},
    {"objective": "step_jepa", "step_splitter": "separator", "predictors": 1},
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["objective"])
@pytest.mark.parametrize("name", ["llama3_1", "qwen3", "hermes", "mistral_v3"])
def test_packed_equals_two_pass(name, case):
    run = prepare(tool_tokenizer(name), {**case, "max_length": 2000}, ROWS)
    assert [len(example.pairs) for example in run.examples][:3] == [1, 0, 1]
    expected = losses(run, run.collator("two_pass")(run.examples))
    assert expected[0].jepa > 0 and expected[0].lm > 0
    for collate in (run.collator(), in_one_row(run.collator())):
        assert_same_losses(run, collate(run.examples), expected)
