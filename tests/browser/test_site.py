"""The documentation as a site: it is built, and a page opens from disk without any network. Needs the extra `docs`."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
def test_a_page_opened_from_disk(tmp_path, browser):
    pytest.importorskip("material", reason="needs the extra docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    context = browser.new_context(viewport={"width": 375, "height": 900})
    context.set_offline(True)
    page, complaints = context.new_page(), []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: complaints.append(request.url) if request.url.startswith("http") else None)
    page.goto((tmp_path / "howto" / "your_model.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    context.close()
    assert complaints == []
