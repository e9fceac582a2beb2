"""Numbers of the states as metrics of a study."""

import numpy as np
import pytest

from stepjepa.analysis import geometry
from stepjepa.data.sources import RowSource, texts_of
from stepjepa.modeling.load import load_model, load_tokenizer
from stepjepa.study.score import GEOMETRY, score_model
from stepjepa.study.spec import Scoring
from support.rows import step_rows, write

ROWS = 180  # more pairs to fit than the model has dimensions
STEPS = {"objective": "step_jepa", "step_splitter": "separator"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    rows = step_rows(ROWS)
    write(folder / "test.jsonl", rows)
    tokenizer = load_tokenizer("tiny", texts_of([rows]))
    load_model("tiny", tokenizer, seed=1).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_the_numbers_are_those_of_the_states(model, monkeypatch):
    measured, measure = [], geometry.measure_states
    monkeypatch.setattr(
        geometry, "measure_states", lambda *views, **how: measured.append(views) or measure(*views, **how)
    )
    wanted = {"answer_nll": {}, **dict.fromkeys(GEOMETRY, STEPS)}
    found = score_model(model, RowSource(model / "test.jsonl"), wanted, Scoring(max_new_tokens=2), {})[0]
    assert list(found) == list(wanted) and all(np.isfinite(value) for value in found.values())
    ((source, target),) = measured
    numbers = measure(source, target)  # themselves compared with NumPy; here: the views, the rows, the unit
    assert found["target_rank"] == pytest.approx(numbers.target.effective_rank, rel=1e-6)
    assert found["difference_top_100"] == pytest.approx(numbers.difference_top_100, rel=1e-4)
    assert found["cosine_gap"] == pytest.approx(numbers.pairs.gap, abs=1e-6)
    assert found["retrieval_mrr"] == pytest.approx(numbers.pairs.mrr, rel=1e-6)
    held_out = geometry.linear_map(source, target)
    assert held_out.train_rows > source.shape[1]
    assert found["map_r2"] == pytest.approx(held_out.test_r2, rel=1e-6)
    assert found["map_fitted_error"] == pytest.approx(held_out.train_error * held_out.train_rows**0.5, rel=1e-6)


@pytest.mark.parametrize(("rows", "none"), [(6, {"map_r2", "map_fitted_error"}), (40, {"map_fitted_error"})])
def test_too_few_pairs_for_a_map_give_no_number(model, rows, none):
    """Below ten pairs there is no map; one through every row has no fitted error."""
    metrics = dict.fromkeys(("map_r2", "map_fitted_error", "retrieval_mrr"), {"objective": "llm_jepa"})
    found = score_model(model, RowSource(model / "test.jsonl"), metrics, Scoring(max_examples=rows), {})[0]
    assert {name for name, value in found.items() if value is None} == none and 0 < found["retrieval_mrr"] <= 1
