"""The two sides of docs/howto/from_trl.md: a script of TRL and the same script here give the same losses."""

import re
import warnings
from pathlib import Path

import pytest
from datasets import Dataset

from support.models import tiny_model
from support.rows import step_rows

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "from_trl.md"
# One batch of all rows, so that their order does not matter; and what the page lists as other defaults.
RUN = "max_steps=4, learning_rate=1e-2, per_device_train_batch_size=16, logging_steps=1, save_strategy='no', "
RUN += "gradient_checkpointing=False, use_cpu=True, report_to='none', disable_tqdm=True"


def script(side: str) -> str:
    """The lines of the page with this mark, and those of both."""
    (block,) = re.findall(r"^```diff\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = block.splitlines()
    assert len([line for line in lines if line[0] != " "]) == 6
    return "\n".join(line[1:] for line in lines if line[0] in (side, " "))


@pytest.mark.slow
def test_the_same_losses_on_both_sides(tmp_path, tokenizer):
    pytest.importorskip("trl", reason="needs the package trl")

    def losses(code):
        for old, new in (('"run"', repr(str(tmp_path / "run"))), ("max_steps=500", RUN)):
            assert old in code
            code = code.replace(old, new)
        given = {"rows": Dataset.from_list(step_rows(16)), "tokenizer": tokenizer, "lora": None}
        given["model"] = tiny_model("llama", vocab_size=len(tokenizer))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of TRL about its future
            exec(code, given)
        return [entry["loss"] for entry in given["trainer"].state.log_history if "loss" in entry]

    expected, ours = losses(script("-")), script("+")
    assert len(expected) == 4 and expected[3] < expected[0] - 0.2
    for change in ('objective="regular"', 'objective="step_jepa", lbd=0.0'):
        assert losses(ours.replace('objective="step_jepa"', change)) == pytest.approx(expected, rel=1e-4)
    assert losses(ours)[0] > expected[0] + 1e-3
