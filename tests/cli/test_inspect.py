"""``stepjepa inspect`` through the entry point, with a tokenizer trained on the file."""

import pytest

from support.rows import write
from support.runs import printed

STEPS = {"question": "How many?", "answer": "First one.\n\nThen two.\n\nSo three.", "plan": "Count."}
ONE = {"question": "How many?", "answer": "Three."}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write(tmp_path_factory.mktemp("data") / "data.jsonl", [STEPS, ONE])


PLAIN = "(plain language modelling): "
# Options, and what is said; the drawing itself is in tests/inspect.
SAID = [
    ("--step_jepa --step_pairs all --predictors 1", "; 2 pairs "),
    ("", "«end of source 1; source 1»"),  # as `stepjepa train` without an objective
    ("--readout mean --jepa_target_column plan", "Count. «target 1»"),
    ("--readout mean --jepa_target_column plan --row 1", f"{PLAIN}no text in the column of the target views (first: "),
    ("--step_jepa --row 1", f"{PLAIN}the answer has fewer than two steps"),
    ("--step_jepa --max_length 14", f"{PLAIN}the views were cut at max_length"),
    ("--step_jepa --forward two_pass", "in training, every segment is a separate row"),
    ("--target_encoder ema", "target_encoder ema encodes them in a separate pass"),
    ("--objective semantic_tube --tube_times 2", "2 pairs, sampled for epoch 0 with seed 42"),
    ("--step_jepa --jepa_ratio 0.000001", "this row is trained on without its pairs"),
    ("--step_pairs all", "--step_pairs has no effect with objective llm_jepa"),
]


@pytest.mark.parametrize(("options", "words"), SAID)
def test_a_row(file, options, words, capsys, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    said = printed(capsys, ["inspect", file, "--model_name", "tiny", *options.split()])
    assert words in " ".join(said.replace("\u2502", "").split())  # which stands between tokens
