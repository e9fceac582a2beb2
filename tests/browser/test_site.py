"""The documentation as a site, opened from disk: search, both themes, code that is not cut off. Needs the extra `docs`."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.browsing import brightness

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("material", reason="needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 1280])
def test_a_page_opened_from_disk(site, browser, scheme, width):
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    context.set_offline(True)
    page, complaints = context.new_page(), []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: complaints.append(request.url) if request.url.startswith("http") else None)
    page.goto((site / "howto" / "your_model.html").as_uri())
    assert (brightness(page) < 128) == (scheme == "dark")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    cut = (
        "[...document.querySelectorAll('.md-typeset pre code')].filter((one) => one.scrollWidth > one.clientWidth + 1)"
    )
    assert page.evaluate(f"{cut}.length") == 0
    if width == 375:
        page.click("label.md-header__button[for=__search]")
    page.click("input.md-search__input")
    page.locator("input.md-search__input").press_sequentially("pooling")
    page.wait_for_function("document.querySelectorAll('.md-search-result__item').length")
    found = page.locator(".md-search-result__link").first.get_attribute("href")
    assert found.startswith("file:") and "your_model.html" in found
    context.close()
    assert complaints == []
