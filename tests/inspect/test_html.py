"""The page of ``stepjepa inspect``: its data is the batch that training collates, and text of the data does nothing."""

import base64
import hashlib
import json
import re

import numpy as np
import pytest

from stepjepa import inspect
from stepjepa.cli.main import main
from stepjepa.inspect.html import script_json
from stepjepa.inspect.record import FIELDS, token_label
from support.pages import Reader, page_of, read_page, stepped_example
from support.records import row_record
from support.rows import step_rows, write

CASES = [
    {"objective": "llm_jepa", "predictors": 2, "forward": "inline"},
    {"objective": "step_jepa", "step_pairs": "all", "forward": "two_pass"},
    {"objective": "semantic_tube", "tube_times": 2},
]
HOSTILE = (
    "</script><script>alert(1)</script><!-- \u202eabc \u05d0\u05d1 \U0001f600 \x00\x1b[31m\x9b\u2028 &lt;b&gt; "
    "${x} {{data}} {{script}}"
)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write(tmp_path_factory.mktemp("data") / "chats.jsonl", step_rows(6, seed=3))


def covered(runs):
    return [at for run in zip(runs[::2], runs[1::2], strict=True) for at in range(*run)]


@pytest.mark.parametrize("options", CASES, ids=str)
def test_the_page_holds_the_record(file, tmp_path, options):
    """That of `test_same_as_training`."""
    words = [f"--{name}={value}" for name, value in options.items()]
    page = tmp_path / "page.html"
    assert main(["inspect", file, "--model_name", "tiny", "--html", str(page), *words]) == 0
    data, record = read_page(page), inspect(file, "tiny", **options).record
    row = data["row"]
    assert row["tokens"] == [token_label(text) for text in record.texts]
    assert all(row[name] == getattr(record, name).tolist() for name in FIELDS.values())
    assert row["kinds"] == list(record.kinds) and set(row["kinds"]) <= data["kinds"].keys()
    assert [covered(runs) for runs in row["seen"]] == [np.flatnonzero(seen).tolist() for seen in record.visible]
    assert covered(row["labelled"]) == np.flatnonzero(record.labelled).tolist()
    assert [pair["target"] for pair in row["pairs"]] == [[list(one) for one in pair.target] for pair in record.pairs]
    assert [pair["lines"] for pair in row["pairs"]] == [list(record.sides(pair)) for pair in record.pairs]
    assert {int(token): tags for token, tags in row["tags"].items()} == record.tags


def hostile_page():
    texts = [HOSTILE, "\ud800", "\u0627\u0644", "", "</", "script>", "\n"]
    record = row_record(stepped_example(30, 2), 2, lambda index: texts[index % len(texts)], vocabulary=97)
    return page_of(record, HOSTILE, [HOSTILE])


def test_text_of_the_data_is_no_markup():
    page = hostile_page()
    assert page.isascii() and script_json({"a": "<&>"}) == '{"a":"\\u003c\\u0026\\u003e"}'
    found = Reader(page)
    assert [tag for tag, _ in found.elements].count("script") == 2
    data, script = found.code["script"]
    assert data.count("<") == data.count(">") == data.count("&") == 0
    assert "alert(1)" in json.loads(data)["title"] and "alert" not in script
    texts = json.loads(data)["row"]["tokens"]
    assert all(text.isprintable() for text in texts) and r"\ud800" in texts
    assert any("\u05d0" in text and r"\u202e" in text and r"\x00" in text for text in texts)
    names = {name for _, attributes in found.elements for name in attributes}
    assert not [name for name in names if name.startswith("on") or name in ("src", "style")]


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
