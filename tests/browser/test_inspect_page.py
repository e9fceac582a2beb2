"""The page of ``stepjepa inspect`` as people use it: pointer, matrix, pairs; and its promises."""

import numpy as np
import pytest

from support.browsing import EXAMPLE, barriers, hover, settled, words_of
from support.pages import stepped_example, write_row
from support.records import row_record


def marked(page, attribute="mark"):
    """{value: [tokens]} of an attribute of the text's tokens."""
    script = f"(e) => [Number(e.dataset.token), e.dataset.{attribute} || '']"
    found = page.evaluate(f"Array.from(document.querySelectorAll('.token'), {script})")
    return {value: [token for token, own in found if own == value] for value in {own for _, own in found} - {""}}


def parts(page):
    return marked(page, "part") | {"read": sorted(sum(marked(page, "read").values(), []))}


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
    page.click('[data-token="3"]')
    page.hover('[data-token="0"]')
    settled(page)
    assert marked(page)["current"] == [3]
    assert page.get_attribute('[data-token="3"]', "aria-selected") == "true"
    page.keyboard.press("Escape")
    assert page.locator('[aria-selected="true"]').count() == 0
    hover(page, 1)
    assert marked(page)["current"] == [1]


def test_pairs(open_page, small):
    page = open_page(small)
    first, second = page.locator(".pair").all()
    assert 'source ends at 2 "b", read at 9 "<|predictor_2|>"' in first.inner_text()
    assert 'target 10-11 (on the trunk 3-4), read at 11 "d"' in first.inner_text()
    first.click()
    assert parts(page) == {"source": [0, 1, 2, 8, 9], "original": [3, 4], "target": [10, 11], "read": [9, 11]}
    assert page.locator("#forest .arrow.chosen").count() == 1
    second.click()
    assert parts(page) == {"source": [0, 1, 2, 3, 4, 12, 13], "original": [5, 6], "target": [14, 15], "read": [13, 15]}
    assert [pair.get_attribute("aria-pressed") for pair in (first, second)] == ["false", "true"]
    second.click()
    assert parts(page) == {"read": []}


def test_the_matrix(open_page, small):
    page = open_page(small)
    page.focus("#mask-picture")
    for key in (*["ArrowDown"] * 10, *["ArrowRight"] * 3):
        page.keyboard.press(key)
    tip = page.inner_text("#tip")
    assert "down: 9 <|predictor_2|> (branch 1)" in tip and "across: 3 c (trunk: answer)" in tip
    assert "does not see it: on the trunk, but after token 2, where branch 1 is attached" in tip
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
    row = row_record(EXAMPLE, 2, words_of, vocabulary=8)
    np.testing.assert_array_equal(np.array(pixels).reshape(16, 16), row.visible)


# Its promises: the rule, hostile text, no network, every width, everybody

RTL = "\u05e9\u05dc\u05d5\u05dd abc"
HOSTILE = ["</script><script>alert(1)</script>", "<img src=x onerror=alert(2)>", RTL, "\u202e\x00\x1b", "&lt;"]


@pytest.mark.parametrize("inline", [False, True])
def test_what_the_page_says_agrees_with_the_rule(open_page, tmp_path, inline):
    """`why`, which puts the rule into words, and the runs that the library has read off its own rule."""
    row = row_record(stepped_example(120, 1 if inline else 3), 2, str, vocabulary=97, inline=inline)
    page = open_page(write_row(tmp_path / "row.html", row))
    wrong = page.evaluate(
        """() => {
            let wrong = 0, asked = 0;
            for (let q = 0; q < row.length; q++) for (let k = 0; k < row.length; k++, asked++) {
                if (row.why(q, k)[0] !== row.sees(q, k)) wrong++;
            }
            return [wrong, asked];
        }"""
    )
    assert wrong == [0, len(row) ** 2]


def test_text_of_the_data_is_text(open_page, tmp_path):
    texts = lambda index: HOSTILE[index % len(HOSTILE)]  # noqa: E731
    row = row_record(stepped_example(24, 2), 2, texts, vocabulary=97)
    page = open_page(write_row(tmp_path / "hostile.html", row, HOSTILE[0]))
    assert page.inner_text("h1") == HOSTILE[0] and page.title() == HOSTILE[0]
    assert page.locator("script").count() == 2 and page.locator("img").count() == 0
    assert page.inner_text('[data-token="0"] bdi') == HOSTILE[0]
    assert page.inner_text('[data-token="3"] bdi') == r"\u202e\x00\x1b"
    hover(page, 1)
    assert HOSTILE[1].replace(" ", "\u00b7") in page.inner_text("#status")
    assert page.evaluate("getComputedStyle(document.querySelector('[data-token=\"2\"]')).unicodeBidi") == "isolate"
    assert page.inner_text('[data-token="2"] bdi') == RTL.replace(" ", "\u00b7")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nobody_is_kept_out(open_page, axe, command, scheme):
    """The page never scrolls sideways, and axe-core finds nothing serious in any state."""
    page = open_page(command, width=360, scheme=scheme, bypass_csp=True)
    for width in (360, 800, 1400):
        page.set_viewport_size({"width": width, "height": 900})
        settled(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("document.querySelector('#mask-picture').clientWidth") > 0.5 * min(width, 600)
    page.evaluate(axe)
    page.locator(".pair").first.click()
    page.click("summary")
    page.focus("#mask-picture" if scheme == "light" else '[data-token="20"]')
    settled(page)
    assert barriers(page) == []
