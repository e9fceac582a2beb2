"""No dead link on the pages outside of docs/, whose own links `mkdocs build --strict` sees (test_reference.py)."""

import re
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def links(text: str) -> list[str]:
    """Targets of the links and pictures of a Markdown text, those in code left out."""
    text = re.sub(r"^```.*?^```|`[^`\n]+`", "", text, flags=re.MULTILINE | re.DOTALL)
    return [*re.findall(r"\]\(([^)\s]+)", text), *re.findall(r"<(?:a|img)\b[^>]*?(?:href|src)=\"([^\"]+)\"", text)]


def headings(page: Path) -> set[str]:
    """The anchors that GitHub gives to headings of words and digits."""
    found = re.findall(r"^#+ +(.+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", heading).strip().lower().replace(" ", "-") for heading in found}


def test_links_lead_somewhere():
    checked = 0
    for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("benchmarks/*.md")]):
        for link in links(page.read_text(encoding="utf-8")):
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (page.parent / parts.path) if parts.path else page
            assert target.exists(), f"{page.name}: {link}: no such file"
            assert not parts.fragment or parts.fragment in headings(target), f"{page.name}: {link}: no such heading"
            checked += 1
    assert checked > 10


def test_the_tests_that_a_page_names_exist():
    texts = [page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md")]
    named = {path for text in texts for path in re.findall(r"\btests/[\w/]+\.py\b", text)}
    assert len(named) > 15
    assert not [path for path in named if not (ROOT / path).is_file()]
