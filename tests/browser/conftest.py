"""A real browser for the page of ``stepjepa inspect``: Chromium driven by Playwright, without any network.

``make setup_browser`` fetches what these tests need. Without it they are skipped, and the summary says so.
"""

import shutil
import warnings
from pathlib import Path

import pytest

from stepjepa.cli.main import main
from support.browsing import EXAMPLE, words_of
from support.pages import write_row
from support.records import row_record
from support.rows import step_rows, write

FETCHED = Path(__file__).resolve().parents[2] / ".venv" / "browser"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def missing(what):
    """Skip, and say so in the summary, which shows no reasons of skipped tests."""
    words = f"the page was not tested in a browser: {what} is missing; make setup_browser fetches it"
    warnings.warn(pytest.PytestWarning(words), stacklevel=2)
    pytest.skip(words)


def chromium():
    """The browser's program: one that is installed, or the one that Playwright has fetched."""
    fetched = sorted(map(str, FETCHED.glob("chromium-*/chrome-linux*/chrome")))
    return next(filter(None, [*map(shutil.which, NAMES), *fetched]), None)


@pytest.fixture(scope="session")
def browser():
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        missing("the Python package playwright")
    program = chromium()
    if program is None:
        missing("Chromium")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def open_page(browser):
    """Opens a file; whatever the page logs, raises or asks for beside itself fails the test."""
    complaints, contexts = [], []

    def opened(path, width=1400, height=900, scheme="light", **options):
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, **options)
        contexts.append(context)
        context.set_offline(True)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("console", lambda message: complaints.append(f"console: {message.text}"))
        page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: complaints.append(request.url) if request.url != path.as_uri() else None)
        page.set_default_timeout(15_000)
        page.goto(path.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture(scope="session")
def axe():
    """The source of axe-core, which finds what keeps people out."""
    file = FETCHED / "axe.min.js"
    if not file.is_file():
        missing(f"axe-core ({file})")
    return file.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    record = row_record(EXAMPLE, 2, words_of, vocabulary=8)
    return write_row(tmp_path_factory.mktemp("page") / "small.html", record)


@pytest.fixture(scope="session")
def command(tmp_path_factory):
    """A page that the command has written."""
    folder = tmp_path_factory.mktemp("page")
    file = write(folder / "data.jsonl", step_rows(8, seed=3))
    words = "--step_jepa --model_name tiny --predictors 2 --step_pairs all".split()
    assert main(["inspect", file, *words, "--html", str(folder / "page.html")]) == 0
    return folder / "page.html"
