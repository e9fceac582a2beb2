"""The page of ``stepjepa inspect``: its data is the batch that training collates, and text of the data does nothing."""

import base64
import hashlib
import json
import re

import numpy as np
import pytest

from stepjepa.cli.main import main
from stepjepa.data.sources import texts_of
from stepjepa.inspect.html import page_html, row_data, script_json
from stepjepa.inspect.layout import row_records
from stepjepa.inspect.record import FIELDS, token_label
from stepjepa.inspect.view import show_rows
from stepjepa.modeling.load import load_tokenizer
from stepjepa.training.options import JEPAOptions
from support.pages import Reader, made_up_page, read_page, records, seen_matrix, stepped_example
from support.records import form_of
from support.rows import step_rows, write

CASES = [
    ({"objective": "llm_jepa", "predictors": 2}, ("packed", "two_pass", "inline")),
    ({"objective": "llm_jepa", "views": "standalone", "predictors": 1}, ("packed", "two_pass")),
    ({"objective": "step_jepa", "step_pairs": "all"}, ("packed", "two_pass")),
    ({"objective": "semantic_tube", "tube_times": 2}, ("packed", "two_pass")),
]
HOSTILE = (
    "</script><script>alert(1)</script><!-- \u202eabc \u05d0\u05d1 \U0001f600 \x00\x1b[31m\x9b\u2028 &lt;b&gt; "
    "${x} {{data}} {{script}}"
)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write(tmp_path_factory.mktemp("data") / "chats.jsonl", step_rows(6, seed=3))


def page_of(file, path, *words):
    assert main(["inspect", file, "--model_name", "tiny", "--html", str(path), *words]) == 0
    return read_page(path)


@pytest.mark.parametrize(("options", "forms"), CASES, ids=str)
def test_the_page_holds_the_records(file, tmp_path, options, forms):
    """Those of `test_same_as_training`, in every form that the options allow."""
    words = [f"--{name}={value}" for name, value in options.items()]
    page = page_of(file, tmp_path / "page.html", *words, "--rows_packed=2")
    assert tuple(page["forms"]) == forms and set(page["whyNot"]) == {"packed", "two_pass", "inline"} - set(forms)
    tokenizer = load_tokenizer("tiny", texts_of([file]))
    for form in forms:
        method = JEPAOptions(**options, forward=form)
        method.check()
        records = show_rows(file, 0, tokenizer, method, 42, 2).records
        for row, record in zip(page["forms"][form]["rows"], records, strict=True):
            texts = {}
            assert row | {"tokens": []} == json.loads(json.dumps(row_data(record, texts) | {"tokens": []}))
            assert [page["texts"][token] for token in row["tokens"]] == [token_label(text) for text in record.texts]
            assert all(row[name] == getattr(record, name).tolist() for name in FIELDS.values())
            np.testing.assert_array_equal(seen_matrix(row), record.visible)
            edges = zip(row["labelled"][::2], row["labelled"][1::2], strict=True)
            assert [at for edge in edges for at in range(*edge)] == np.flatnonzero(record.labelled).tolist()
            terms = [[list(one) for one in pair.target.terms] for pair in record.pairs]
            assert [pair["target"]["terms"] for pair in row["pairs"]] == terms


def hostile_page():
    texts = [HOSTILE, "\ud800", "\u0627\u0644", "", "</", "script>", "\n"]
    rows = records(stepped_example(30, 2), lambda index: texts[index % len(texts)])
    return page_html(made_up_page(HOSTILE, rows, HOSTILE, {"inline": HOSTILE}))


def test_text_of_the_data_is_no_markup():
    page = hostile_page()
    assert page.isascii() and script_json({"a": "<&>"}) == '{"a":"\\u003c\\u0026\\u003e"}'
    found = Reader(page)
    assert [tag for tag, _ in found.elements].count("script") == 2
    data, script = found.code["script"]
    assert data.count("<") == data.count(">") == data.count("&") == 0
    assert "alert(1)" in json.loads(data)["title"] and "alert" not in script
    texts = json.loads(data)["texts"]
    assert all(text.isprintable() for text in texts) and r"\ud800" in texts
    assert any("\u05d0" in text and r"\u202e" in text and r"\x00" in text for text in texts)
    assert not [
        name
        for _, attributes in found.elements
        for name in attributes
        if name.startswith("on") or name in ("src", "style")
    ]


def test_only_the_page_s_own_script_may_run_and_nothing_may_be_loaded():
    found = Reader(hostile_page())
    (policy,) = (meta["content"] for tag, meta in found.elements if meta.get("http-equiv") == "Content-Security-Policy")

    def known(text):
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    rules = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert rules == {
        "default-src": "'none'",
        "script-src": known(found.code["script"][1]),
        "style-src": known(found.code["style"][0]),
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    script = found.code["script"][1]
    unsafe = "innerHTML outerHTML insertAdjacentHTML document.write eval( fetch( XMLHttp import(".split()
    assert [word for word in unsafe if word in script] == []
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", script + found.code["style"][0])
    assert "url(" not in found.code["style"][0] and "@import" not in found.code["style"][0]


def test_padding_is_one_lane_s_end():
    longer, shorter = stepped_example(12, 2, 1), stepped_example(6, 1, 1)
    rows = row_records([longer, longer, shorter], form_of(1, 97, max_row_length=30), str)
    assert len(rows) > 1
    padded = next(row for row in rows if "padding" in row.kinds)
    data = row_data(padded, {})
    first = padded.kinds.index("padding")
    assert data["sections"][-1] == [first, len(padded), "padding"]
    assert all(data["seen"][token] == [token, token + 1] for token in range(first, len(padded)))
    assert {row.batch for row in rows} == {3}
