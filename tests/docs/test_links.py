"""No dead link: every relative link of the pages leads to a file and a heading, and the navigation holds every page."""

from __future__ import annotations

import re
import unicodedata
from contextlib import suppress
from functools import cache
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from urllib.parse import urlsplit

import yaml

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
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", text, re.MULTILINE):
        named = re.search(r"\{ *#([\w-]+) *\}", heading)
        name = first = named[1] if named else slug(heading)
        count = 0
        while name in found:
            count += 1
            name = f"{first}_{count}"
        found.add(name)
    return found | set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))


def in_reference(path: str, anchor: str, reference) -> str | None:
    """What is wrong with a link to a page that is written when the site is built."""
    if path in reference.api_pages():
        modules = re.findall(r"^::: (\S+)$", reference.api_pages()[path], re.MULTILINE)
        known = [module for module in modules if anchor.startswith(module + ".")]
        for module in known:
            with suppress(AttributeError):
                attrgetter(anchor[len(module) + 1 :])(import_module(module))
                return None
        return None if not anchor or anchor in modules else f"{path} has no {anchor}"
    page = reference.command_pages().get(path)
    if page is None:
        return f"no page {path}"
    headings = {slug(heading) for heading in re.findall(r"^#+ (.+)$", page, re.MULTILINE)}
    return None if not anchor or anchor in headings else f"{path} has no heading {anchor}"


def dead(page: Path, link: str, reference) -> str | None:
    """What is wrong with a link of a page, None where it leads somewhere."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        right = parts.scheme in ("https", "mailto") and (parts.netloc or parts.path)
        return None if right else "an address of another kind"
    target = (page.parent / parts.path).resolve() if parts.path else page
    inside = str(target.relative_to(DOCS)) if target.is_relative_to(DOCS) else ""
    if inside.startswith("reference/"):
        return in_reference(inside, parts.fragment, reference)
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


def test_the_navigation_holds_every_page():
    def paths(nav):
        for item in nav:
            for value in item.values():
                yield from paths(value) if isinstance(value, list) else [value]

    named = list(paths(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    assert sorted(named) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def test_no_bar_is_escaped_in_the_code_of_a_table():
    # The site shows the backslash, other readers of Markdown need it; <code>&#124;</code> is right in both.
    texts = {page.name: BLOCK.sub("", page.read_text(encoding="utf-8")) for page in PAGES}
    wrong = {
        name: found for name, text in texts.items() if (found := re.findall(r"^\|.*`[^`\n]*\\\|[^`\n]*`", text, re.M))
    }
    assert not wrong


def test_the_tests_that_a_page_names_exist():
    texts = [page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md")]
    named = {path for text in texts for path in re.findall(r"\btests/[\w/]+\.py\b", text)}
    assert len(named) > 15
    assert not [path for path in named if not (ROOT / path).is_file()]
