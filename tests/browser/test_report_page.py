"""The page of ``stepjepa report`` as people use it: charts, filter, hostile text, everybody."""

import pytest

from stepjepa.cli.main import main
from support.browsing import barriers, settled
from support.reports import write_evaluation, write_pair, write_run, write_study

HOSTILE = {
    "q0": "</script><script>alert(1)</script>",
    "q1": "<img src=x onerror=alert(2)>",
    "q2": "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd abc",
    "q3": "\u202eleft &lt;",
}


def made(*words):
    assert main(["report", *map(str, words)]) == 0


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    """Every kind of page."""
    folder = tmp_path_factory.mktemp("reports")
    made(*write_pair(folder / "hostile", **HOSTILE))
    several = [*write_pair(folder, "rw" * 30, "rrww" * 15), write_run(folder / "third", "llm_jepa", lbd=2)]
    write_evaluation(several[2], "wwwr" * 15)
    (folder / "begun").mkdir()
    (folder / "begun" / "run.json").write_text('{"settings": {}}')
    made(*several)
    for place in (write_study(folder / "study", answers=True), write_study(folder / "old"), folder / "begun"):
        made(place)
    places = {"pair": "hostile/regular", "three": "regular", "study": "study", "old": "old", "begun": "begun"}
    return {name: folder / place / "report.html" for name, place in places.items()}


def questions(page):
    return [text.removeprefix("question ") for text in page.locator(".card .about").all_inner_texts()]


def choose(page, label):
    page.locator("label.choice", has_text=label).click()


def test_the_filter(open_page, pages):
    page = open_page(pages["pair"])
    labels = page.locator("label.choice").all_inner_texts()
    assert labels == ["all (5)", "both right (1)", "only A (2)", "only B (1)", "both wrong (1)"]
    for label, left in (("both right", ["0"]), ("only A", ["1", "4"]), ("only B", ["2"]), ("both wrong", ["3"])):
        choose(page, label)
        assert questions(page) == left
        shown = f"A is regular, B is step. Answers are judged by gsm8k. {len(left)} questions"
        assert page.inner_text("#shown").startswith(shown)
    choose(page, "all")
    assert questions(page) == list("01234")
    first = page.locator(".card").first
    assert first.locator(".judged").all_inner_texts() == ["right", "right"]
    assert page.locator(".card").nth(1).locator(".judged").all_inner_texts() == ["right", "wrong"]
    page.fill('input[type="search"]', "TEXT 4")
    assert questions(page) == ["4"] and "1 contain the search text" in page.inner_text("#shown")


def test_three_models(open_page, pages):
    page = open_page(pages["three"])
    assert page.locator("label.choice").all_inner_texts()[1:3] == ["both right (15)", "only A (15)"]
    page.focus('select[name="b"]')
    page.select_option('select[name="b"]', label="third")
    # rw against wwwr, by fours: only A, both wrong, only A, only B
    labels = ["all (60)", "both right (0)", "only A (30)", "only B (15)", "both wrong (15)"]
    assert page.locator("label.choice").all_inner_texts() == labels
    assert page.evaluate("document.activeElement.name") == "b"
    page.select_option('select[name="a"]', label="third")  # the two change places
    assert page.locator(".card").first.locator("h4").all_inner_texts() == ["A: third\nwrong", "B: regular\nright"]
    assert page.locator(".card").count() == 12
    page.click("#more")
    assert page.locator(".card").count() == 60 and page.is_hidden("#more")
    assert page.evaluate("document.activeElement === document.querySelectorAll('.card')[12]")


def test_a_chart_by_pointer_and_keys(open_page, pages):
    page = open_page(pages["pair"])
    plot = page.locator('[data-chart="lm_loss"] .plot')
    plot.scroll_into_view_if_needed()
    box = plot.locator("svg").bounding_box()
    scale = box["width"] / page.evaluate("DATA.frame.width")
    step, value, x, _ = page.evaluate("DATA.charts.lm_loss[0].points[1]")
    page.mouse.move(box["x"] + (x + 3) * scale, box["y"] + box["height"] / 2)
    settled(page)
    tip = page.locator('[data-chart="lm_loss"] .tip')
    assert (step, value) == (20, 1) and tip.inner_text().split("\n\n") == ["step 20", "regular 1", "step 1"]
    page.focus('[data-chart="jepa_loss"] .plot')
    page.keyboard.press("End")
    assert page.inner_text("#say") == "step 50; step 0.1; step (evaluation) 0.2"


def test_text_of_the_data_is_text(open_page, pages):
    page = open_page(pages["pair"])
    assert page.locator("script").count() == 2 and page.locator("img").count() == 0
    for place, text in enumerate(HOSTILE.values()):
        card = page.locator(".card").nth(place)
        assert card.locator(".question").inner_text() == f"question {text}"
        assert card.locator(".side .text").nth(1).inner_text() == f"step says {text}"
    assert page.locator(".side .text").first.get_attribute("dir") == "auto"


CUT = """() => [...document.querySelectorAll("h1, h2, h3, p, li, .card .text")].filter((e) =>
    !e.closest(".scroll") && e.getClientRects().length && e.getBoundingClientRect().right > innerWidth + 1).length"""
LOOKS = [("pair", "dark"), ("three", "light"), ("study", "light"), ("old", "dark"), ("begun", "light")]


@pytest.mark.parametrize(("name", "scheme"), LOOKS)
def test_nobody_is_kept_out(open_page, axe, pages, name, scheme):
    """Every kind of page fits a telephone and a screen; axe-core finds nothing serious, unfolded and with a chart read."""
    page = open_page(pages[name], width=375, scheme=scheme, bypass_csp=True)
    for width in (375, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width and page.evaluate(CUT) == 0
    page.evaluate(axe)
    page.evaluate("document.querySelectorAll('details').forEach((e) => (e.open = true))")
    if name in ("pair", "three"):
        choose(page, "only A")
    if page.locator(".plot").count():
        page.focus(".plot")
        page.keyboard.press("End")
    settled(page)
    assert barriers(page) == []
