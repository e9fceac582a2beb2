"""The reference pages hold what the parsers and the source hold, and the site asks nothing of other servers."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from stepjepa.cli.main import COMMANDS
from stepjepa.objectives.base import OBJECTIVES, find_objective, options_with_defaults

ROOT = Path(__file__).resolve().parents[2]


def options_of(page):
    """The flags of a page's tables that have values, a default and a meaning."""
    return set(re.findall(r"^\| `--(\w+)` \| .+? \| .*? \| .{2,} \|$", page, re.MULTILINE))


def test_every_option_of_every_command_stands_on_its_page(reference):
    pages = reference.command_pages()
    assert set(pages) == {f"reference/commands/{name}.md" for name in COMMANDS}
    for command, parser in reference.parsers().items():
        assert options_of(pages[f"reference/commands/{command}.md"]) == set(parser.options), command


def test_every_objective_has_a_page_with_its_formula_source_options_and_example(reference):
    pages = reference.method_pages()
    assert set(pages) == {f"methods/{name}.md" for name in OBJECTIVES}
    for path, page in pages.items():
        name = Path(path).stem
        assert "gamma * LM" in page and "train --train_file" in page, name
        assert options_of(page) == set(options_with_defaults(find_objective(name))), name
        if name != "regular":
            assert "**Source.**" in page and "**When.**" in page and page.count("```") >= 4, name
        assert not re.search(r"\]\((?!\.\./|https:)", page), "a link that is not relative to the page's folder"


@pytest.mark.long
def test_the_site_is_built_and_asks_nothing_of_other_servers(tmp_path):
    """``--strict``: no link of a page under docs/ is dead."""
    pytest.importorskip("material", reason="needs the extra docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    pages = {file: file.read_text(encoding="utf-8") for file in tmp_path.rglob("*.html")}
    fetched = r"<(?:script|img|iframe|link rel=\"?(?:stylesheet|preconnect))\b[^>]*?(?:src|href)=\"?(?:https?:)?//"
    assert len(pages) > 50 and not [file for file, page in pages.items() if re.search(fetched, page)]
    styles = [file.read_text(encoding="utf-8") for file in tmp_path.rglob("*.css")]
    assert styles and not [style for style in styles if re.search(r"(?:url\(|@import )[\"']?(?:https?:)?//", style)]
