"""The reference pages hold what the parsers and the source hold, and the site asks nothing of other servers."""

import re
from pathlib import Path

import yaml

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


def test_the_site_asks_nothing_of_other_servers():
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert settings["theme"]["font"] is False
    assert "extra_javascript" not in settings and "offline" in settings["plugins"]
    assert settings["extra"] == {"polyfills": ["assets/iframe-worker.js"]}  # else the plugin takes one from the network
    for style in settings["extra_css"]:
        assert "url(" not in (ROOT / "docs" / style).read_text(encoding="utf-8")
    assert "pymdownx.arithmatex" not in str(settings["markdown_extensions"])  # it needs a script for the formulas
    pages = [file.read_text(encoding="utf-8") for file in (ROOT / "docs").rglob("*.md")]
    assert not [page for page in pages if re.search(r"<script|^```mermaid|!\[[^\]]*\]\(https?:", page, re.MULTILINE)]
