"""The page of ``stepjepa inspect``: its data is the batch that training collates, and text of the data does nothing."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from stepjepa.cli.main import main
from stepjepa.data.sources import texts_of
from stepjepa.forest.masks import dense_mask
from stepjepa.inspect.html import LIMIT, FormRows, Variant, page_data, page_html, row_data, script_json
from stepjepa.inspect.layout import row_records
from stepjepa.inspect.record import Form
from stepjepa.inspect.style import KINDS, lanes
from stepjepa.modeling.load import load_tokenizer
from stepjepa.objectives.base import objective_of
from stepjepa.training.batches import Draw, DrawnExamples
from stepjepa.training.encoding import encode
from stepjepa.training.options import JEPAOptions
from stepjepa.training.setup import ModelSetup, make_collator
from support.pages import read_page, records, seen_matrix, stepped_example
from support.records import row_record
from support.rows import step_rows

FIELDS = {
    "input_ids": "ids",
    "position_ids": "positions",
    "example": "examples",
    "segment": "segments",
    "order": "orders",
    "attach": "attaches",
    "floor": "floors",
}
CASES = [
    ({"objective": "llm_jepa", "predictors": 2}, ("packed", "two_pass", "inline")),
    ({"objective": "llm_jepa", "views": "standalone", "predictors": 1}, ("packed", "two_pass")),
    ({"objective": "step_jepa", "step_pairs": "all"}, ("packed", "two_pass")),
    ({"objective": "step_jepa", "predictors": 0}, ("packed", "two_pass", "inline")),
    ({"objective": "split", "target_grad": True}, ("packed", "two_pass")),
    ({"objective": "semantic_tube", "tube_times": 2}, ("packed", "two_pass")),
]
HOSTILE = (
    "</script><script>alert(1)</script><!-- \u202eabc \u05d0\u05d1 \U0001f600 \x00\x1b[31m\x9b\u2028 &lt;b&gt; "
    "${x} {{data}} {{script}}"
)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "chats.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in step_rows(6, seed=3)))
    return str(path)


def words_of(options):
    return [f"--{name}={value}" for name, value in options.items()]


def page_of(file, path, *words):
    assert main(["inspect", file, "--model_name", "tiny", "--html", str(path), *words]) == 0
    return read_page(path)


def training_batch(file, form, count, options):
    """The first examples of a file as training collates them, in the order of the file."""
    method = JEPAOptions(**options, forward=form)
    method.check()
    tokenizer = load_tokenizer("tiny", texts_of([file]))
    store, _ = encode(file, tokenizer, method)
    objective = objective_of(method)
    drawn = DrawnExamples(store, objective, 42, method.jepa_ratio)
    ids = list(range(len(tokenizer), len(tokenizer) + (method.predictors or 0)))
    setup = ModelSetup(len(tokenizer), ids, form, objective)
    collator = make_collator(setup, method, tokenizer.pad_token_id, "sdpa", "cpu")
    return collator([drawn[Draw(0, row)] for row in range(count)])


def readouts(row, side):
    return [pair[side] for pair in row["pairs"]]


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize(("options", "forms"), CASES, ids=str)
def test_the_page_holds_the_batch_of_training(file, tmp_path, options, forms, count):
    page = page_of(file, tmp_path / "page.html", *words_of(options), f"--rows_packed={count}")
    (variant,) = page["variants"]
    assert tuple(variant["forms"]) == forms and set(variant["whyNot"]) == {"packed", "two_pass", "inline"} - set(forms)
    for form in forms:
        batch, rows = training_batch(file, form, count, options), variant["forms"][form]["rows"]
        if form == "two_pass":
            assert_rows_of_two_passes(rows, batch)
        else:
            assert_row_records(rows, batch)


def assert_row_records(rows, batch):
    width = batch.rows.input_ids.shape[1]
    assert len(rows) == len(batch.rows.input_ids)
    mask = dense_mask(batch.rows)[:, 0].numpy()
    for number, row in enumerate(rows):
        for name, own in FIELDS.items():
            given = getattr(batch.rows, name)
            assert row[own] == ([0] * width if given is None else given[number].tolist()), name
        np.testing.assert_array_equal(seen_matrix(row), mask[number])
    labelled = [
        number * width + place
        for number, row in enumerate(rows)
        for start, stop in zip(row["labelled"][::2], row["labelled"][1::2], strict=True)
        for place in range(start, stop)
    ]
    assert labelled == sorted((batch.label_positions + 1).tolist())
    if batch.sources.vectors is None:
        for side, reads in (("source", batch.sources), ("target", batch.targets)):
            flat = [number * width + place for number, row in enumerate(rows) for place in readouts(row, side)]
            assert sorted(flat) == sorted(reads.positions.tolist())
    else:
        assert not any(row["pairs"] for row in rows)
        terms = [
            (number * width + place, round(factor, 5))
            for number, row in enumerate(rows)
            for drawn in row["tube"]
            for place, factor in drawn["target"]["terms"]
        ]
        given = zip(batch.targets.positions.tolist(), batch.targets.coefficients.tolist(), strict=True)
        assert sorted(terms) == sorted((place, round(factor, 5)) for place, factor in given)


def assert_rows_of_two_passes(rows, batch):
    """Every segment of the one row on the page is one padded row of the batch, seen causally."""
    (row,) = rows
    shown = []
    for given in batch.every_rows:
        for ids, mask, places in zip(given.input_ids, given.attention_mask, given.position_ids, strict=True):
            shown.append((ids[mask == 1].tolist(), places[mask == 1].tolist()))
    changes = np.diff(np.stack([row["examples"], row["segments"]])).any(0)
    edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(row["ids"])]
    found = [(row["ids"][a:b], row["positions"][a:b]) for a, b in zip(edges[:-1], edges[1:], strict=True)]
    assert sorted(found) == sorted(shown)
    expected = np.zeros((edges[-1], edges[-1]), bool)
    for start, stop in zip(edges[:-1], edges[1:], strict=True):
        expected[start:stop, start:stop] = np.tri(stop - start)
    np.testing.assert_array_equal(seen_matrix(row), expected)
    assert len(row["pairs"]) + len(row["tube"]) == batch.pairs


def test_several_predictors_are_variants(file, tmp_path):
    page = page_of(file, tmp_path / "page.html", "--step_jepa", "--predictors", "0", "1", "3")
    assert [variant["predictors"] for variant in page["variants"]] == [0, 1, 3]
    kinds = [name["name"] for name in page["kinds"]]
    assert kinds == list(KINDS)
    count = [
        sum(kind == kinds.index("predictor") for kind in variant["forms"]["packed"]["rows"][0]["kinds"])
        for variant in page["variants"]
    ]
    pairs = len(page["variants"][0]["forms"]["packed"]["rows"][0]["pairs"])
    assert count == [0, pairs, 3 * pairs] and pairs == 1


class Elements(HTMLParser):
    """Start tags, and the text of scripts and styles."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.texts, self.open = [], {"script": [], "style": []}, None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.open = tag if tag in self.texts else None
        if self.open:
            self.texts[tag].append("")

    def handle_data(self, data):
        if self.open:
            self.texts[self.open][-1] += data

    def handle_endtag(self, tag):
        self.open = None


def hostile_page():
    texts = [HOSTILE, "\ud800", "\u0627\u0644", "", "</", "script>", "\n"]
    rows = records(stepped_example(30, 2), lambda index: texts[index % len(texts)])
    variants = [Variant(2, "packed", {form: FormRows([row], HOSTILE, [HOSTILE]) for form, row in rows.items()})]
    variants[0].why_not = {"inline": HOSTILE}
    return page_html(page_data(HOSTILE, variants, [HOSTILE], HOSTILE, [HOSTILE]))


def test_text_of_the_data_is_no_markup():
    page = hostile_page()
    assert page.isascii()
    found = Elements(page)
    assert [tag for tag, _ in found.tags].count("script") == 2
    data, script = found.texts["script"]
    assert data.count("<") == data.count(">") == data.count("&") == 0
    assert "alert(1)" in json.loads(data)["title"] and "alert" not in script
    texts = json.loads(data)["texts"]
    assert all(text.isprintable() for text in texts) and r"\ud800" in texts
    assert any("\u05d0" in text and r"\u202e" in text and r"\x00" in text for text in texts)
    assert not [
        name for _, attributes in found.tags for name in attributes if name.startswith("on") or name in ("src", "style")
    ]


def test_only_the_page_s_own_script_may_run_and_nothing_may_be_loaded():
    found = Elements(hostile_page())
    (policy,) = (meta["content"] for tag, meta in found.tags if meta.get("http-equiv") == "Content-Security-Policy")

    def known(text):
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    rules = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert rules == {
        "default-src": "'none'",
        "script-src": known(found.texts["script"][1]),
        "style-src": known(found.texts["style"][0]),
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    script = found.texts["script"][1]
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "fetch(",
        "XMLHttp",
        "import(",
    ):
        assert word not in script
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", script + found.texts["style"][0])
    assert "url(" not in found.texts["style"][0] and "@import" not in found.texts["style"][0]


def test_what_is_no_number_is_refused():
    assert script_json({"a": "<&>"}) == '{"a":"\\u003c\\u0026\\u003e"}'
    with pytest.raises(ValueError):
        script_json({"loss": float("nan")})


def test_size_of_a_long_row():
    rows = records(stepped_example(1000, 8), lambda index: f" word{index}")
    variants = [Variant(2, "packed", {form: FormRows([row]) for form, row in rows.items()})]
    assert len(rows["packed"]) > 1600 and len(page_html(page_data("", variants))) < 0.2 * LIMIT


def test_lanes():
    example = stepped_example(9, 2)  # pairs end at 4 and 6; the targets are 5-6 and 7-8
    placed = lanes(records(example, str)["packed"])
    assert placed.names == ("trunk", "branches", "targets")
    assert placed.columns.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 5, 6, 7, 8, 7, 8, 9, 10]
    assert placed.of_section == (0, 0, 1, 2, 1, 2) and placed.width == 11
    placed = lanes(records(example, str)["two_pass"])
    assert placed.names == ("trunk", "sources", "sources", "targets")  # sources overlap, targets do not
    both = lanes(row_record([example, example], 2, str, vocabulary=97))
    assert both.columns.tolist() == [*range(9), 5, 6, 7, 8, 7, 8, 9, 10, *range(15, 24), 20, 21, 22, 23, 22, 23, 24, 25]


def test_padding_is_one_lane_s_end():
    longer, shorter = stepped_example(12, 2, 1), stepped_example(6, 1, 1)
    rows = row_records([longer, longer, shorter], Form(1), str, vocabulary=97, max_row_length=30)
    assert len(rows) > 1
    padded = next(row for row in rows if "padding" in row.kinds)
    data = row_data(padded, {})
    first = padded.kinds.index("padding")
    assert data["sections"][-1] == [first, len(padded), "padding"]
    assert all(data["seen"][token] == [token, token + 1] for token in range(first, len(padded)))
    assert {row.batch for row in rows} == {3}
