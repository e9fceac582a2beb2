"""A page that explains a row: one file with its style, script and data, which needs no network.

The page does not implement the visibility rule: for each token it gets the runs of tokens that the token sees
(`RowRecord.visible`), and the integer fields that the rule reads, so that it can explain why. Text from the data is in the
page as JSON, inside a script element of a type that no browser runs, and its script inserts it only as text. The page's
Content-Security-Policy forbids all connections, and every script except its own, which it identifies by a hash.

Shapes: L positions of a row.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

from stepjepa.errors import ConfigError
from stepjepa.inspect.record import FIELDS, KINDS, RowRecord, edges_of, token_label
from stepjepa.utils.files import AnyPath, write_whole
from stepjepa.utils.text import escaped

# Joined into one script, in this order.
_SCRIPTS = ("data.js", "tokens.js", "mask.js", "zoom.js", "forest.js", "pairs.js", "page.js")
Page = dict[str, Any]


def page_data(title: str, record: RowRecord, notes: Sequence[str] = ()) -> Page:
    """Collect all data that the page shows, ready for JSON, with control and format characters escaped.

    Returns:
        ``kinds``, the kinds of tokens by name, and ``row``: ``tokens`` (L,) labels; the integer fields of `RowRecord`, (L,)
        each; ``kinds`` (L,) names; ``sections`` [start, stop, name]; ``labelled``
        [start, stop) of the tokens with an LM loss, flat; ``seen`` for each token the [start, stop) of what it sees, flat;
        ``pairs``; ``tags``; ``lanes``; ``counts``.
    """
    row = {
        "counts": record.counts,
        "tokens": list(map(token_label, record.texts)),
        **{name: getattr(record, name).tolist() for name in FIELDS.values()},
        "kinds": record.kinds,
        "sections": [
            [start, stop, escaped(record.names[start])] for start, stop in record.sections
        ],
        "labelled": edges_of(record.labelled),
        "seen": [edges_of(row) for row in record.visible],
        "pairs": [
            asdict(pair) | {"arrow": pair.arrow, "title": pair.title, "lines": record.sides(pair)}
            for pair in record.pairs
        ],
        "tags": record.tags,
        "lanes": asdict(record.lanes),
    }
    return {
        "title": escaped(title),
        "notes": list(map(escaped, notes)),
        "kinds": {
            name: {"name": name, "letter": kind.letter, "words": kind.meaning}
            for name, kind in KINDS.items()
        },
        "row": row,
    }


def page_html(data: Mapping[str, Any]) -> str:
    """The page, in ASCII, for what `page_data` returns."""
    style = _colours() + base_style() + page_part("inspect", "page.css")
    script = "".join(page_part("inspect", name) for name in _SCRIPTS)
    # The data go in last, so that no text in them is replaced as a placeholder.
    parts = {
        "policy": page_policy(style, script),
        "style": style,
        "script": script,
        "data": script_json(data),
    }
    page = page_part("inspect", "page.html")
    for name, text in parts.items():
        page = page.replace("{{" + name + "}}", text, 1)
    return page


def script_json(data: object) -> str:
    """JSON for the inside of a script element: ASCII, without characters that HTML interprets."""
    # Without the escapes, text such as </script> would end the element.
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.translate({ord(character): f"\\u{ord(character):04x}" for character in "<>&"})


def write_page(page: str | bytes, path: AnyPath) -> None:
    """Write a page or a picture atomically; a missing folder is created.

    Raises:
        ConfigError: the file cannot be written; an earlier one is unchanged.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, [page.encode("ascii") if isinstance(page, str) else page])
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror or error})") from None


def page_policy(style: str, script: str, images: str = "") -> str:
    """The Content-Security-Policy of a page: it allows the page's style and script, by their hashes, and no connection.

    Args:
        images: where pictures may come from, such as ``data:``; by default no pictures are allowed.
    """
    allowed = f"img-src {images}; " if images else ""
    for kind, text in (("script-src", script), ("style-src", style)):
        allowed += (
            f"{kind} 'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'; "
        )
    return f"default-src 'none'; {allowed}base-uri 'none'; form-action 'none'"


def base_style() -> str:
    """The CSS of every page: paper and ink in light and dark, and the switch between them."""
    return page_part("inspect", "base.css")


def page_part(package: str, name: str) -> str:
    """A file in the folder ``page`` of a package of this library."""
    return (files("stepjepa") / package / "page" / name).read_text(encoding="ascii")


def _colours() -> str:
    """The kinds' colours as CSS: ``--k`` for each class ``k-...``, and ``--on-k`` for letters on it."""
    rules = []
    for name, kind in KINDS.items():
        fill = f"light-dark({kind.light}, {kind.dark})"
        letters = f"light-dark({kind.on_light}, {kind.on_dark})"
        rules.append(f".k-{name} {{ --k: {fill}; --on-k: {letters}; }}")
    return "\n".join([*rules, ""])
