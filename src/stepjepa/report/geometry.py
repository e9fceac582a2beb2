"""Figures and numbers of ``stepjepa analyze``, and any other picture that is put into the page."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stepjepa.analysis.draw import METHOD_TITLES
from stepjepa.report.files import Reader, mapping, number
from stepjepa.report.signs import analysed_signs

MOST_BYTES = 2_000_000  # of all pictures of a page
_KINDS = {".png": "image/png", ".svg": "image/svg+xml"}
# What `stepjepa.analysis.draw.FIGURES` and the curves show.
TITLES = {
    "spectrum": "Singular values of target minus source",
    "cosine": "Cosines of matched and of shuffled pairs",
    "retrieval": "Targets found from their sources, by layer",
    "rank_source": "Effective rank of the sources, by layer",
    "rank_target": "Effective rank of the targets, by layer",
    "steps": "Pairs by step",
    "curves": "Training losses",
}


class Album:
    """Pictures as data of the page, until there is no room for more."""

    def __init__(self, reader: Reader, room: int = MOST_BYTES):
        self.reader, self.room = reader, room

    def picture(self, path: Path, title: str) -> dict[str, str] | None:
        """A picture's title and address, None (and a problem) where it cannot be read or there is no room."""
        try:
            content = path.read_bytes()
        except OSError as error:
            self.reader.say(f"{path}: cannot be read ({error.strerror or error}), and is left out")
            return None
        if len(content) > self.room:
            self.reader.say(f"{path}: is left out, so that the page stays small")
            return None
        self.room -= len(content)
        return {"title": title, "source": f"data:{_KINDS[path.suffix]};base64,{base64.b64encode(content).decode()}"}


def geometry_record(folder: Path, album: Album) -> dict[str, Any]:
    """An analysis: its numbers in the layer that is shown, its signs of collapse, and its figures."""
    numbers = album.reader.json_object(folder / "numbers.json")
    layer = numbers.get("layer", -1)
    rows = []
    for label, model in mapping(numbers.get("models")).items():
        shown = mapping(mapping(mapping(model).get("layers")).get(str(layer)))
        rows.append([str(label), *_cells(shown)])
    figures = [album.picture(path, title) for path, title in _figures(folder)]
    where = "behind the final norm" if layer == -1 else f"of layer {layer}"
    return {
        "folder": str(folder),
        "about": f"{numbers['n']} pairs of {numbers.get('file')}, states {where}" if "n" in numbers else "",
        "rows": rows,
        "chance": _chance(numbers, layer),
        "signs": analysed_signs(numbers),
        "figures": [one for one in figures if one is not None],
    }


def _cells(shown: dict[str, Any]) -> list[str]:
    pairs, source, target = (mapping(shown.get(name)) for name in ("pairs", "source", "target"))
    return [
        _written(pairs.get("aligned_mean"), ".4f"),
        _written(pairs.get("shuffled_mean"), ".4f"),
        _written(pairs.get("d_prime"), ".2f"),
        _written(pairs.get("retrieval_at_1"), ".1%").replace("%", " %"),
        _written(source.get("effective_rank"), ".1f"),
        _written(target.get("effective_rank"), ".1f"),
    ]


def _chance(numbers: dict[str, Any], layer: Any) -> str:
    for model in mapping(numbers.get("models")).values():
        shown = mapping(mapping(mapping(model).get("layers")).get(str(layer)))
        return _written(mapping(shown.get("pairs")).get("chance_at_1"), ".1%").replace("%", " %")
    return "-"


def _written(value: Any, form: str) -> str:
    found = number(value)
    return "-" if found is None else format(found, form)


def _figures(folder: Path) -> Sequence[tuple[Path, str]]:
    """The figures of an analysis, SVG in front of PNG, in a fixed order."""
    found: dict[str, Path] = {}
    for suffix in (".png", ".svg"):
        found.update((path.stem, path) for path in sorted(folder.glob(f"*{suffix}")))
    named = [*TITLES.items(), *((stem, _map_title(stem)) for stem in sorted(found) if stem not in TITLES)]
    return [(found[stem], title) for stem, title in named if stem in found and title]


def _map_title(stem: str) -> str:
    """Of a picture of both views in one plane; empty for a file that no analysis has written."""
    method, _, model = stem.partition("-")
    return f"{METHOD_TITLES[method]} of both views: {model}" if method in METHOD_TITLES and model else ""
