"""``stepjepa inspect`` through the entry point, with a tokenizer trained on the file."""

import json

import pytest

from support.drawings import cells
from support.runs import printed

STEPS = {"question": "How many?", "answer": "First one.\n\nThen two.\n\nSo three.", "plan": "Count."}
ONE = {"question": "How many?", "answer": "Three."}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "data.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in (STEPS, ONE)))
    return str(path)


@pytest.fixture
def inspect(capsys, monkeypatch, file):
    """The output of the command with its options."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    return lambda options: printed(capsys, ["inspect", file, "--model_name", "tiny", *options.split()])


PLAIN = "(plain language modelling): "
COLUMN = "--readout mean --jepa_target_column plan"
WHOLE = "First·one.↵↵Then·two.↵↵So·three."
# Options; then what is drawn, as "section|its tokens", and what is said.
DRAWN = [
    (
        "--step_jepa",
        "trunk: user|How·many?",
        "trunk: step 1|First·one.↵↵ «end of source 1»",
        "2 of predictors",
        "; 1 pair ",
    ),
    ("--step_jepa", "trunk: step 3|So·three.", "trunk: end of turn|<end>", "target 1|Then·two.↵↵ «target 1»"),
    ("--step_jepa --step_pairs all --predictors 1", "branch 2|<predictor_1> «source 2»", "; 2 pairs "),
    # As `stepjepa train` without an objective.
    ("", "trunk: user|How·many? «end of source 1; source 1»", f"target 1|{WHOLE} «target 1»"),
    (COLUMN, "trunk: user|How·many? «end of source 1; source 1»", "target 1|Count. «target 1»"),
    (f"{COLUMN} --row 1", f"without a pair {PLAIN}no text in the column of the target views (first: "),
    ("--step_jepa --row 1", "trunk: step 1|Three.", f"{PLAIN}the answer has fewer than two steps", "pairs: none"),
    ("--step_jepa --max_length 14", f"{PLAIN}the views were cut at max_length", "1 answer cut at max_length"),
    ("--step_jepa --forward two_pass", "in training, every segment is a separate row"),
    ("--target_encoder ema", "target_encoder ema encodes them in a separate pass"),
    ("--objective semantic_tube --tube_times 2", "2 pairs, sampled for epoch 0 with seed 42"),
    ("--step_jepa --jepa_ratio 0.000001", "this row is trained on without its pairs"),
    ("--step_pairs all", "--step_pairs has no effect with objective llm_jepa"),
]


@pytest.mark.parametrize("case", DRAWN, ids=lambda case: case[0])
def test_a_row(inspect, case):
    options, *expected = case
    out = inspect(options)
    words = " ".join(out.split())
    for one in expected:
        section, drawn, tokens = one.partition("|")
        assert cells(out, section) == tokens if drawn else one in words, one
