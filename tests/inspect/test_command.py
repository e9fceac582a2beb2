"""``stepjepa inspect`` for every objective and form: what the picture of one chat says."""

import json

import pytest

from stepjepa.cli.main import main
from support.drawings import cells

STEPS = {"question": "How many?", "answer": "First one.\n\nThen two.\n\nSo three."}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "data.jsonl"
    path.write_text(json.dumps(STEPS))
    return str(path)


@pytest.fixture
def inspect(capsys, monkeypatch, file):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")

    def call(*options):
        assert main(["inspect", file, "--model_name", "tiny", *options]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return out

    return call


def test_views_apart(inspect):
    out = inspect("--views", "standalone", "--predictors", "2")
    assert cells(out, "source 1") == "<bos><user>How·many?<predictor_2><predictor_1> «source 1»<end>"
    assert cells(out, "target 1").endswith("three. «target 1»<end>")
    assert "end of source" not in out
    out = inspect("--front_pred", "--predictors", "1")
    assert cells(out, "source 1") == "<bos><user><predictor_1>How·many? «source 1»<end>"
    out = inspect("--reverse_pred", "--last_token", "-1")
    assert cells(out, "source 1").endswith("three.<end> «source 1»")
    assert cells(out, "target 1") == "<bos><user>How·many?<end> «target 1»"


def test_horizons_share_segments(inspect):
    out = inspect("--step_jepa", "--step_pairs", "all", "--multi_horizon", "1", "2", "--predictors", "1")
    assert cells(out, "branch 1") == "<predictor_1> «source 1, 2»"
    assert cells(out, "target 2") == "So·three. «target 2, 3»"
    assert cells(out, "branch 3") == "<predictor_1> «source 3»"
    assert "target 3 " not in out
    out = inspect("--step_jepa", "--horizon", "2")
    assert cells(out, "target 1") == "So·three. «target 1»"
    assert "no pair: the horizon reaches beyond" in " ".join(inspect("--step_jepa", "--horizon", "3").split())


def test_the_inline_form(inspect):
    out = inspect("--step_jepa", "--forward", "inline", "--same_predictor")
    assert cells(out, "predictors") == "<predictor_1><predictor_1> «source 1»"
    assert cells(out, "trunk: step 2") == "Then·two.↵↵ «target 1»"
    assert "branch" not in out and "(isolated in its place)" in out
    assert "LM loss on" in out and ", " in out.split("LM loss on")[1].split("\n")[0]  # not on the predictors


def test_two_passes(inspect):
    out = inspect("--step_jepa", "--forward", "two_pass")
    words = " ".join(out.split())
    assert "every segment is a row of its own" in words
    assert (
        cells(out, "source 1")
        == "<bos><user>How·many?<end><assistant>First·one.↵↵<predictor_1><predictor_2> «source 1»"
    )
    assert cells(out, "target 1") == "Then·two.↵↵ «target 1»"


def test_split(inspect):
    out = inspect("--objective", "split", "--split_ratio", "0.3")
    assert cells(out, "branch 1") == "<predictor_1> «source 1»"
    assert cells(out, "target 1").endswith("So·three.<end> «target 1»")
    assert "targets get no gradient" in out
    assert "targets get no gradient" not in inspect("--objective", "split", "--target_grad")
    assert "by the EMA encoder" in " ".join(inspect("--target_encoder", "ema").split())


def test_the_semantic_tube(inspect):
    out = inspect("--objective", "semantic_tube", "--tube_times", "2")
    words = " ".join(out.split())
    assert "semantic_tube, span: 2" in words and "; 2 spans" in words
    assert "epoch 0 with seed 42" in words
    for said in ("s 1", "t 1", "s 2", "t 2"):
        assert said in out.split("segment")[1].split("LM loss")[0]
    assert out.count("compared: T - P (source) with P (target)") == 2
    assert "branch" not in out and "target 1" not in out
    assert inspect("--objective", "semantic_tube", "--seed", "1") != inspect(
        "--objective", "semantic_tube", "--seed", "2"
    )
    out = inspect("--objective", "semantic_tube", "--tube_mode", "e2e")
    assert "1 pair of vectors" in " ".join(out.split()) and "sampled" not in out


def test_pairs_that_are_drawn(inspect):
    shown = {
        cells(inspect("--step_jepa", "--step_pairs", "random", "--seed", str(seed)), "target 1") for seed in range(8)
    }
    assert shown == {"Then·two.↵↵ «target 1»", "So·three. «target 1»"}
    out = inspect("--step_jepa", "--step_pairs", "random")
    assert "one of 2 pairs, sampled for epoch 0 with seed 42" in out
    out = inspect("--step_jepa", "--jepa_ratio", "0.000001")
    assert "pairs: none" in out and "leaves this row out" in " ".join(out.split())


def test_labels(inspect):
    length = int(" ".join(inspect("--objective", "regular").split()).split(" tokens:")[0].split()[-1])
    assert f"LM loss on {length - 1} tokens: 1-{length - 1}\n" in inspect("--labels", "all")
    assert f"-{length - 2}\n" in inspect("--labels", "reference")  # not on the end of turn


def test_without_a_template(inspect):
    out = inspect("--plain", "--step_jepa")
    assert cells(out, "trunk: user") == "How·many?"
    assert cells(out, "trunk: step 3") == "So·three."
    assert cells(out, "trunk: end of turn") == "<end>"
