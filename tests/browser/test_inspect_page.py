"""The page of ``stepjepa inspect`` as people use it: pointer, keyboard, matrix, pairs, forms, numbers, themes."""

import numpy as np
import pytest

from stepjepa.data.types import Example, Span
from stepjepa.objectives.semantic_tube import pairs_of_spans
from support.browsing import EXAMPLE, brightness, hover, settled, words_of
from support.pages import read_page, write_rows
from support.records import row_record, tube_record
from support.tube import tube_options


def marked(page):
    """{mark: [tokens]} of the text."""
    found = page.evaluate(
        "Array.from(document.querySelectorAll('.token'), (e) => [Number(e.dataset.token), e.dataset.mark || ''])"
    )
    marks = {name: [token for token, mark in found if mark == name] for name in ("seen", "seer", "current")}
    return {name: tokens for name, tokens in marks.items() if tokens}


def choose(page, label):
    page.locator("label.choice", has_text=label).click()


def parts(page):
    found = page.evaluate(
        "Array.from(document.querySelectorAll('.token'), (e) => [Number(e.dataset.token), e.dataset.part || '', "
        "e.dataset.read || ''])"
    )
    names = {name: [token for token, part, _ in found if part == name] for name in ("source", "original", "target")}
    return names | {"read": [token for token, _, read in found if read]}


def test_the_pointer(open_page, small):
    page = open_page(small)
    assert page.title() == "a row" and "16 tokens: 8 on the trunk" in page.inner_text("#counts")
    hover(page, 9)  # the second predictor of branch 1
    assert marked(page) == {"current": [9], "seen": [0, 1, 2, 8]}
    assert "sees 5: 0\u20132, 8\u20139; seen by 1: 9" in page.inner_text("#status")
    hover(page, 2)
    assert marked(page) == {"current": [2], "seen": [0, 1], "seer": [3, 4, 5, 6, 7, 8, 9, 12, 13]}
    hover(page, 11)  # the isolated d
    assert marked(page) == {"current": [11], "seen": [10]}
    assert "target 1" in page.inner_text("#status") and "position 6" in page.inner_text("#status")
    page.mouse.move(2, 2)
    page.wait_for_function("state.current === null")
    assert marked(page) == {}
    page.click('[data-token="3"]')
    page.hover('[data-token="0"]')
    settled(page)
    assert marked(page)["current"] == [3]
    assert page.get_attribute('[data-token="3"]', "aria-selected") == "true"
    page.keyboard.press("Escape")
    assert page.locator('[aria-selected="true"]').count() == 0
    hover(page, 1)
    assert marked(page)["current"] == [1]
    assert page.locator('input[value="inline"]').is_disabled()
    assert "inline: this form is left out" in page.inner_text("#controls")


def test_pairs(open_page, small):
    page = open_page(small)
    first, second = page.locator(".pair").all()
    assert "source: up to 2 b, read at 9 <|predictor_2|> (position 4)" in first.inner_text()
    assert (
        "target 10\u201311 (positions 5\u20136); on the trunk 3\u20134, read at 11 d (position 6)" in first.inner_text()
    )
    first.click()
    assert parts(page) == {"source": [0, 1, 2, 8, 9], "original": [3, 4], "target": [10, 11], "read": [9, 11]}
    assert page.locator("#forest .arrow.chosen").count() == 1
    second.click()
    assert parts(page) == {"source": [0, 1, 2, 3, 4, 12, 13], "original": [5, 6], "target": [14, 15], "read": [13, 15]}
    assert [pair.get_attribute("aria-pressed") for pair in (first, second)] == ["false", "true"]
    second.click()
    assert not any(parts(page).values())


def test_sums_of_states(open_page, tmp_path):
    pairs = pairs_of_spans(Span(1, 4), Span(5, 8), [(1, 2)], tube_options())
    example = Example(np.arange(8, dtype=np.int32), (Span(5, 8),), pairs=tuple(pairs))
    page = open_page(write_rows(tmp_path / "tube.html", {"packed": tube_record([example], words_of)}))
    (pair,) = page.locator(".pair").all()
    said = " ".join(pair.inner_text().split())
    assert "pair 1, span" in said and "P (target): 2; \u2212 h[1] + h[2]" in said
    pair.click()
    assert parts(page)["target"] == [2] and parts(page)["read"] == [1, 2]


def test_keyboard(open_page, small):
    page = open_page(small)
    stops = []
    for _ in range(14):
        page.keyboard.press("Tab")
        stops.append(page.evaluate("document.activeElement.id || document.activeElement.className.split(' ')[0] || "
                                   "document.activeElement.name"))  # fmt: skip
    assert stops == [
        *("skip", "theme", "form", "token", "zoom-in", "zoom-out", "zoom-all", "mask-picture", "pair", "pair"),
        *stops[10:],
    ]
    page.focus('[data-token="0"]')
    where = lambda: page.evaluate("Number(document.activeElement.dataset.token)")  # noqa: E731
    for key, token in (
        *(("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", 15), ("ArrowRight", 15), ("PageUp", 14)),
        *(("PageUp", 12), ("Home", 0), ("PageDown", 1), ("PageDown", 8)),
    ):
        page.keyboard.press(key)
        assert where() == token, key
    page.keyboard.press("ArrowUp")
    assert where() in range(1, 8)  # the line above, whichever token is nearest
    page.keyboard.press("ArrowDown")
    assert where() in (8, 9)
    page.focus('[data-token="8"]')
    assert marked(page) == {"current": [8], "seen": [0, 1, 2], "seer": [9]}
    spoken = page.inner_text("#say")
    assert (
        spoken.startswith("token 8 <|predictor_1|> \u00b7 branch 1 \u00b7 position 3")
        and "sees 4: 0\u20132, 8" in spoken
    )
    page.keyboard.press("Enter")
    assert page.get_attribute('[data-token="8"]', "aria-selected") == "true"
    page.keyboard.press("ArrowRight")
    assert page.locator('[aria-selected="true"]').count() == 0 and marked(page)["current"] == [9]
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.focus(".pair")
    page.keyboard.press("Space")
    assert parts(page)["read"] == [9, 11]


def test_the_matrix(open_page, small):
    page = open_page(small)
    page.focus("#mask-picture")
    for key in ("ArrowDown", *["ArrowDown"] * 9, *["ArrowRight"] * 2):
        page.keyboard.press(key)
    tip = page.inner_text("#tip")
    assert "down: 9 <|predictor_2|> (branch 1)" in tip and "across: 2 b (trunk: answer)" in tip
    assert "sees it: on the trunk, up to token 2, where branch 1 is attached" in tip
    page.keyboard.press("ArrowRight")
    assert "does not see it: on the trunk, but after token 2, where branch 1 is attached" in page.inner_text("#tip")
    assert "does not see it" in page.inner_text("#say")
    assert marked(page)["current"] == [9]
    page.keyboard.press("+")
    page.keyboard.press("+")
    assert page.evaluate("mask.view.cells") == pytest.approx(16 / 2.25)
    page.keyboard.press("0")
    assert page.evaluate("mask.view.cells") == 16
    page.keyboard.press("Escape")
    assert page.is_hidden("#tip")
    box = page.locator("#mask-picture").bounding_box()
    side = page.evaluate("mask.side")
    left = page.evaluate("mask.left + BAND")
    page.mouse.move(box["x"] + left + side * 0.5 / 16, box["y"] + 9 + side * 15.5 / 16)
    assert "down: 15 f (target 2)" in page.inner_text("#tip") and "isolated: it sees itself alone" in page.inner_text(
        "#tip"
    )
    pixels = page.evaluate(
        """() => {
            const {width, height} = mask.picture;
            const {data} = mask.picture.getContext("2d").getImageData(0, 0, width, height);
            const middle = (cell) => (BAND + (cell + 0.5) * mask.scale) * mask.ratio;
            return Array.from({length: 256}, (_, at) => {
                const [x, y] = [middle(at % 16) + mask.left * mask.ratio, middle(Math.floor(at / 16))].map(Math.round);
                return data[4 * (y * width + x) + 3] > 200;
            });
        }"""
    )
    row = row_record([EXAMPLE], 2, words_of, vocabulary=8)
    np.testing.assert_array_equal(np.array(pixels).reshape(16, 16), row.visible)
    # The wheel zooms where the focus is, and scrolls the page elsewhere.
    page.evaluate("document.activeElement.blur()")
    page.set_viewport_size({"width": 1400, "height": 500})
    page.hover("#mask-picture")
    page.mouse.wheel(0, 100)
    assert page.evaluate("mask.view.cells") == 16
    page.focus("#mask-picture")
    page.hover("#mask-picture")
    page.mouse.wheel(0, -100)
    page.wait_for_function("mask.view.cells < 16")


def test_forms_and_rows(open_page, command):
    page, data = open_page(command), read_page(command)
    forms = data["forms"]
    assert set(forms) == {"packed", "two_pass", "inline"} and len(forms["packed"]["rows"]) > 1
    for form, label in (("two_pass", "two passes"), ("inline", "inline"), ("packed", "packed")):
        choose(page, label)
        assert page.inner_text("#counts") == forms[form]["rows"][0]["counts"]
        assert page.locator(".token").count() == len(forms[form]["rows"][0]["ids"])
        assert page.evaluate("document.activeElement.name") == "form"  # the focus stays where it was
    choose(page, "2 of ")
    assert page.inner_text("#counts") == forms["packed"]["rows"][1]["counts"]


def test_themes(open_page, small):
    page = open_page(small, scheme="dark")
    assert brightness(page) < 128
    before = page.evaluate("mask.inks.ink")
    page.click("#theme")
    assert brightness(page) > 128 and page.evaluate("mask.inks.ink") != before  # the matrix was drawn again
    page.click("#theme")
    assert brightness(page) < 128
    page.emulate_media(color_scheme="light")
    page.reload()
    assert brightness(page) > 128
