"""A page that explains a row: one file, with its style, its script and its data in it, that needs no network.

Text of the data reaches the page as JSON inside a script element of a type that no browser runs, and from there the document
as text. The page's Content-Security-Policy forbids all connections, and every script but its own, known by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from stepjepa.errors import ConfigError
from stepjepa.inspect.palette import COLOURS, DARK_COLOURS, letter_colour
from stepjepa.utils.files import write_whole

LIMIT = 3_000_000  # bytes of a page
_PARTS = files("stepjepa.inspect") / "page"
_SCRIPTS = ("data.js", "tokens.js", "mask.js", "zoom.js", "forest.js", "pairs.js", "page.js")
_POLICY = "default-src 'none'; script-src '{script}'; style-src '{style}'; base-uri 'none'; form-action 'none'"


def page_html(data: Mapping[str, Any]) -> str:
    """The page, in ASCII.

    Args:
        data: from `page_data.page_data`.
    """
    style, script = _colours() + base_style() + _part("page.css"), "".join(map(_part, _SCRIPTS))
    policy = _POLICY.format(style=element_hash(style), script=element_hash(script))
    page = _part("page.html")
    # The data last: no text in it is taken for a place to fill.
    for name, text in (("policy", policy), ("style", style), ("script", script), ("data", script_json(data))):
        page = page.replace(f"{{{{{name}}}}}", text, 1)
    return page


def script_json(data: Any) -> str:
    """JSON for the inside of a script element: ASCII, without any character that HTML reads."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def write_page(page: str, path: str | os.PathLike[str]) -> None:
    """Write a page; it appears whole or not at all.

    Raises:
        ConfigError: it could not be written; what stood there still stands.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, [page.encode("ascii")])
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror or error})") from None


def element_hash(text: str) -> str:
    """The hash by which a Content-Security-Policy names a style or a script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def base_style() -> str:
    """The CSS of every page: paper and ink in light and dark, and the switch between them."""
    return _part("base.css")


def _part(name: str) -> str:
    return (_PARTS / name).read_text(encoding="ascii")


def _colours() -> str:
    """The kinds' colours as CSS: ``--k`` for each class ``k-...``, and ``--on-k`` for letters on it."""
    rules = []
    for kind, light in COLOURS.items():
        dark = DARK_COLOURS[kind]
        on = f"light-dark({letter_colour(light)}, {letter_colour(dark)})"
        rules.append(f".k-{kind} {{ --k: light-dark({light}, {dark}); --on-k: {on}; }}")
    lines = f"--k-predictor: light-dark({COLOURS['predictor']}, {DARK_COLOURS['predictor']});"
    return "\n".join([f":root {{ {lines} }}", *rules, ""])
