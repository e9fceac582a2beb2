"""No dead link: every relative link of the pages leads to a file and a heading; `mkdocs build --strict` sees the rest."""

import re
import unicodedata
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("benchmarks/*.md")])
BLOCK = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)


def links(text: str) -> list[str]:
    """Targets of the links and pictures of a Markdown text, those in code left out."""
    text = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "`", BLOCK.sub("", text), flags=re.DOTALL)
    named = re.findall(r"^ *\[[^\]]+\]: *(\S+)", text, re.MULTILINE)
    inline = re.findall(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)", text)
    return [*inline, *named, *re.findall(r"<(?:a|img)\b[^>]*?(?:href|src)=\"([^\"]+)\"", text)]


def slug(heading: str) -> str:
    """The anchor that Python-Markdown gives a heading; GitHub gives the same to headings of words and digits."""
    plain = unicodedata.normalize("NFKD", re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading))
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain.encode("ascii", "ignore").decode()).strip().lower())


@cache
def anchors(page: Path) -> set[str]:
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#{1,6} +(.+?) *#*$", text, re.MULTILINE)
    named = re.findall(r"\{ *#([\w-]+) *\}|<a (?:id|name)=\"([^\"]+)\"", text)
    return {slug(heading) for heading in headings} | {name for pair in named for name in pair}


def dead(page: Path, link: str, reference) -> str | None:
    """What is wrong with a link of a page, None where it leads somewhere."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        right = parts.scheme in ("https", "mailto") and (parts.netloc or parts.path)
        return None if right else "an address of another kind"
    target = (page.parent / parts.path).resolve() if parts.path else page
    inside = str(target.relative_to(DOCS)) if target.is_relative_to(DOCS) else ""
    if inside.startswith("reference/"):
        # Written when the site is built, which also knows their headings.
        return None if inside in {**reference.api_pages(), **reference.command_pages()} else "no such page"
    if not target.exists():
        return "no such file"
    if parts.fragment and (target.suffix != ".md" or parts.fragment not in anchors(target)):
        return "no such heading"
    if page.is_relative_to(DOCS) and not inside:
        return "leaves docs/, so the site does not have it; name the file without a link"
    return None


def test_links_lead_somewhere(reference):
    found = [(page, link) for page in PAGES for link in links(page.read_text(encoding="utf-8"))]
    assert len(found) > 100
    wrong = [f"{page.relative_to(ROOT)}: {link}: {why}" for page, link in found if (why := dead(page, link, reference))]
    assert not wrong, "\n".join(wrong)


def test_the_tests_that_a_page_names_exist():
    texts = [page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md")]
    named = {path for text in texts for path in re.findall(r"\btests/[\w/]+\.py\b", text)}
    assert len(named) > 15
    assert not [path for path in named if not (ROOT / path).is_file()]
