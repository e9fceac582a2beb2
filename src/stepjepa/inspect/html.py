"""A page that explains a row: one file, with its style, its script and its data in it, that needs no network.

The page has no rule of its own: for each token it is given the runs of tokens that it sees (`RowRecord.seen_by`), and the
integer fields that the rule reads, so that it can say why. Text of the data reaches the page as JSON inside a script element
of a type that no browser runs, and from there the document as text. The page's Content-Security-Policy forbids all
connections, and every script but its own, known by its hash.

Of a model's attention only the weights of visible pairs are kept, row by row. A weight p in [0, 1] becomes the byte
``round(255 sqrt(p))``: finer where weights are small, and never off by more than 0.004.

Shapes: L positions of a row, H heads, D width, V visible pairs.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stepjepa.errors import ConfigError
from stepjepa.inspect.record import FIELDS, KINDS, RowRecord, edges_of, letter_colour, token_label
from stepjepa.utils.files import write_whole
from stepjepa.utils.text import escaped

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FORMS = ("packed", "two_pass", "inline")
LIMIT = 3_000_000  # bytes of a page
_BLOCK = 512  # queries whose visibility is computed at once
_PARTS = files("stepjepa.inspect") / "page"
_SCRIPTS = ("data.js", "tokens.js", "mask.js", "zoom.js", "forest.js", "pairs.js", "page.js")
Page = dict[str, Any]
Map = tuple[int, int | None]  # a layer and a head of it, both from 1 on; no head: the mean over them


def page_data(title: str, variants: Sequence[dict[str, Any]], texts: dict[str, int], notes: Sequence[str] = ()) -> Page:
    """All that the page shows, ready for JSON. Text of the data is in it with control and format characters escaped.

    Args:
        variants: for each K ``predictors`` (K itself), ``shown`` (the form that was asked for, one of `FORMS`),
            ``forms`` (form -> `form_data`, that one among them) and ``whyNot`` (form -> why it is not there).
        texts: labels of tokens -> their numbers, as `row_data` has given them.
        notes: about all variants.
    """
    said = [{name: escaped(why) for name, why in variant["whyNot"].items()} for variant in variants]
    return {
        "title": escaped(title),
        "notes": list(map(escaped, notes)),
        "model": None,
        "kinds": [{"name": name, "letter": kind.letter, "words": kind.meaning} for name, kind in KINDS.items()],
        "variants": [{**variant, "whyNot": why} for variant, why in zip(variants, said, strict=True)],
        "texts": list(texts),
    }


def form_data(
    records: Sequence[RowRecord], texts: dict[str, int], packing: str = "", notes: Sequence[str] = ()
) -> dict[str, Any]:
    """The rows of one form, at least one, with a line on how they are packed; `texts` is as for `row_data`."""
    return {
        "packing": [escaped(packing)] if packing else [],
        "notes": list(map(escaped, notes)),
        "rows": [row_data(record, texts) for record in records],
    }


def row_data(record: RowRecord, texts: dict[str, int]) -> dict[str, Any]:
    """One row.

    Args:
        texts: labels of tokens -> their numbers; new ones are added.

    Returns:
        ``tokens`` (L,) numbers into the labels; the integer fields of `RowRecord`, (L,) each; ``kinds`` (L,) numbers into
        `KINDS`; ``sections`` [start, stop, name]; ``labelled`` [start, stop) of the tokens with an LM loss, flat; ``seen``
        for each token the [start, stop) of the runs that it sees, flat; ``pairs``; ``lanes``; ``counts``; ``batch``.
    """
    numbers, lanes = {kind: number for number, kind in enumerate(KINDS)}, record.lanes
    blocks = (record.seen_by(slice(start, start + _BLOCK)) for start in range(0, len(record), _BLOCK))
    return {
        "counts": record.counts,
        "batch": record.batch,
        "tokens": [texts.setdefault(token_label(text), len(texts)) for text in record.texts],
        **{name: getattr(record, name).tolist() for name in FIELDS.values()},
        "kinds": [numbers[kind] for kind in record.kinds],
        "sections": [[start, stop, escaped(record.names[start])] for start, stop in record.sections],
        "labelled": edges_of(record.labelled),
        "seen": [edges_of(row) for block in blocks for row in block],
        "pairs": [asdict(pair) | {"arrow": pair.arrow} for pair in record.pairs],
        "lanes": {**vars(lanes), "columns": lanes.columns.tolist()},
    }


def page_html(data: Mapping[str, Any]) -> str:
    """The page, in ASCII, of what `page_data` returns."""
    style, script = _colours() + base_style() + _part("page.css"), "".join(map(_part, _SCRIPTS))
    page, policy = _part("page.html"), page_policy(style, script)
    # The data last: no text in it is taken for a place to fill.
    for name, text in (("policy", policy), ("style", style), ("script", script), ("data", script_json(data))):
        page = page.replace(f"{{{{{name}}}}}", text, 1)
    return page


def script_json(data: object) -> str:
    """JSON for the inside of a script element: ASCII, without any character that HTML reads."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.translate({ord(character): f"\\u{ord(character):04x}" for character in "<>&"})


def write_page(page: str | bytes, path: str | os.PathLike[str]) -> None:
    """Write a page or a picture with an atomic write, its folder too.

    Raises:
        ConfigError: it could not be written; an earlier file is unchanged.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, [page.encode("ascii") if isinstance(page, str) else page])
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror or error})") from None


def page_policy(style: str, script: str, images: str = "") -> str:
    """The Content-Security-Policy of a page: its own style and script, known by their hashes, and nothing that is fetched.

    Args:
        images: where pictures may come from, such as ``data:``; none without it.
    """
    allowed = f"img-src {images}; " if images else ""
    for kind, text in (("script-src", script), ("style-src", style)):
        allowed += f"{kind} 'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'; "
    return f"default-src 'none'; {allowed}base-uri 'none'; form-action 'none'"


def base_style() -> str:
    """The CSS of every page: paper and ink in light and dark, and the switch between them."""
    return _part("base.css")


def _part(name: str) -> str:
    return (_PARTS / name).read_text(encoding="ascii")


def _colours() -> str:
    """The kinds' colours as CSS: ``--k`` for each class ``k-...``, and ``--on-k`` for letters on it."""
    predictor = KINDS["predictor"]
    rules = [f":root {{ --k-predictor: light-dark({predictor.light}, {predictor.dark}); }}"]
    for name, kind in KINDS.items():
        on = f"light-dark({letter_colour(kind.light)}, {letter_colour(kind.dark)})"
        rules.append(f".k-{name} {{ --k: light-dark({kind.light}, {kind.dark}); --on-k: {on}; }}")
    return "\n".join([*rules, ""])


class ModelNumbers:
    """A model that looks at rows; loads torch.

    Args:
        name: Hub id, folder or preset.
        tokenizer: of the model.
        predictors: names of the predictor tokens that rows may have.
        seed: of random weights.
        layers: the layers, from 1 on, whose attention is wanted; None for as many as fit.

    Raises:
        ConfigError: it cannot be loaded, takes no mask, or has no such layer.
    """

    def __init__(
        self,
        name: str,
        tokenizer: PreTrainedTokenizerBase,
        predictors: Sequence[str],
        seed: int,
        layers: Sequence[int] | None = None,
    ):
        from stepjepa.modeling.load import is_preset
        from stepjepa.modeling.trial import load_probe

        self.layers, self.probe, self.notes = layers, load_probe(name, tokenizer, predictors, seed), list[str]()
        for layer in layers or ():
            if not 1 <= layer <= self.probe.layers:
                raise ConfigError(f"no attention of layer {layer}: this model has layers 1 to {self.probe.layers}")
        if is_preset(name):
            self.notes.append(f"{name} is a preset: its weights are random (seed {seed}), its numbers mean nothing")
        elif predictors and not self.probe.known:
            self.notes.append(
                "the model has no predictor tokens (training writes them next to it, to predictors.safetensors): they get "
                f"new random embeddings (seed {seed}), so cosines read at a predictor say little"
            )

    def of_row(self, record: RowRecord, room: int) -> tuple[dict[str, Any], str]:
        """What the page shows of a row, and a note on it.

        Args:
            room: bytes that its attention may take.

        Returns:
            ``ids``, ``losses``, ``cosines`` and, where it fits, ``attention``; {} where the model refuses the row.
        """
        import torch

        from stepjepa.modeling.trial import attention_fits, row_numbers

        probe, row = self.probe, record.batch_row()
        for at, kind in enumerate(record.kinds):
            if kind == "predictor":  # the model's need not follow the tokenizer's vocabulary
                row.input_ids[0, at] = probe.predictor_ids[record.texts[at]]
        labelled = torch.from_numpy(np.flatnonzero(record.labelled))
        kept = choose_maps(probe.layers, probe.heads, int(record.visible.sum()), room, self.layers)
        wanted = bool(kept) and attention_fits(probe, len(record))
        try:
            numbers = row_numbers(probe, row, labelled - 1, row.input_ids[0, labelled], wanted)
        except ConfigError as error:
            return {}, f"no numbers of the model: {error}"
        given: dict[str, Any] = {"ids": row.input_ids[0].tolist()}
        cosines = pair_cosines(record, numbers.states.numpy())
        for name, values in (("losses", numbers.losses.tolist()), ("cosines", cosines)):
            given[name] = [round(value, 4) if np.isfinite(value) else None for value in values]
        if kept and not wanted:
            return given, f"no attention: {len(record)} tokens are too many to hold it for every layer"
        if wanted and len(numbers.attention) != probe.layers:
            return given, "no attention: this model gives none"
        if wanted:
            given["attention"] = attention_data([layer.numpy() for layer in numbers.attention], record.visible, kept)
        return given, maps_note(kept, probe.layers, probe.heads)


def pair_cosines(record: RowRecord, states: np.ndarray) -> list[float]:
    """Cosine of the two sides of each pair, of the last states (L, D) float32 of the row's tokens; NaN of another layer."""
    wide, found = states.astype(np.float64), []
    for pair in record.pairs:
        source, target = (
            sum((term.coefficient * wide[term.token] for term in side.terms), np.zeros(wide.shape[1]))
            for side in (pair.source, pair.target)
        )
        length = float(np.linalg.norm(source) * np.linalg.norm(target))
        found.append(math.nan if pair.layer is not None else float(source @ target) / length if length else 0.0)
    return found


def choose_maps(layers: int, heads: int, visible: int, room: int, asked: Sequence[int] | None = None) -> list[Map]:
    """The maps that fit, in order: means over the heads first, then single heads, each from the last layer backwards.

    Args:
        layers, heads: of the model.
        visible: V.
        room: bytes of base64 that may be used.
        asked: layers, from 1 on, that are wanted alone.
    """
    wanted = sorted(set(asked or range(1, layers + 1)), reverse=True)
    maps: list[Map] = [(layer, None) for layer in wanted]
    maps += [(layer, head) for layer in wanted for head in range(1, heads + 1)]
    written = -(-max(visible, 1) * 4 // 3) + 24  # bytes of a map in base64
    return sorted(maps[: max(room // written, 0)], key=lambda kept: (kept[0], kept[1] or 0))


def maps_note(kept: Sequence[Map], layers: int, heads: int) -> str:
    """What of a model's attention is shown."""
    if not kept:
        return f"attention: none of {layers} layers x {heads} heads, one alone would make the page too large"
    single, shown = sum(head is not None for _, head in kept), sorted({layer for layer, _ in kept})
    which = "all layers" if len(shown) == layers else f"{len(shown)} of {layers} layers ({', '.join(map(str, shown))})"
    heads *= len(shown)
    return f"attention: {which}, {single:,} of their {heads:,} heads by themselves, and the means over the heads"


def attention_data(attention: Sequence[np.ndarray], visible: np.ndarray, kept: Sequence[Map]) -> dict[str, Any]:
    """The maps `kept`, at least one, for a page.

    Args:
        attention: for each layer (H, L, L) float32.
        visible: (L, L) bool.

    Returns:
        ``maps``: [layer, head] of each; ``weights``: base64 of their V bytes each, one map after the other.
    """
    chosen = [attention[layer - 1].mean(0) if head is None else attention[layer - 1][head - 1] for layer, head in kept]
    weights = np.stack([weights[visible] for weights in chosen])
    packed = np.rint(255 * np.sqrt(np.clip(weights, 0, 1))).astype(np.uint8)
    return {"maps": [list(found) for found in kept], "weights": base64.b64encode(packed.tobytes()).decode()}
