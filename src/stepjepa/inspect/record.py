"""The record of a row: what every token is, what is read where, and who sees whom.

Terminal, picture and page are readers of this record, which `layout` makes of an example; the table of the kinds of tokens
(`KINDS`) is theirs too. It holds no rule of its own: `forest.visibility.visible` says who sees whom.

Colours differ under deuteranopia too: blue against yellow, and light against dark. No colour is the only mark of anything:
kinds have letters, segments have names. Text from the data is written only through `token_label` or `utils.text.escaped`.

Shapes: L positions of a row, S sections.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import numpy as np

from stepjepa.forest.visibility import visible
from stepjepa.utils.text import counted, escaped

# The integer fields of a row: the collator's name -> the record's.
FIELDS = {
    "input_ids": "ids",
    "position_ids": "positions",
    "segment": "segments",
    "order": "orders",
    "attach": "attaches",
    "floor": "floors",
}


class Kind(NamedTuple):
    """A kind of token: its letter, what it is, its style in a terminal, its colours on light and dark paper."""

    letter: str
    meaning: str
    style: str
    light: str
    dark: str


KINDS = {  # in the order of the legend
    "prompt": Kind(".", "trunk, no label", "", "#b9c0cc", "#5c6573"),
    "answer": Kind("a", "trunk, labelled", "green", "#6cb2e6", "#2f74a8"),
    "source_end": Kind("s", "end of a source view on the trunk", "bold yellow", "#0b4a80", "#b4dcff"),
    "original": Kind("o", "a target view's original on the trunk", "cyan", "#f4e66a", "#efe374"),
    "isolated": Kind("i", "a target view isolated in its place", "blue", "#dc8a12", "#d0891a"),
    "predictor": Kind("p", "predictor token", "bold magenta", "#b5402a", "#d24a33"),
    "source": Kind("v", "a source view in a segment of its own", "yellow", "#7a68b8", "#a796ea"),
    "target": Kind("t", "isolated copy of a target view", "blue", "#dc8a12", "#d0891a"),
}


_WHITE_SPACE = str.maketrans({" ": "\u00b7", "\n": "\u21b5", "\t": "\u21e5"})


def token_label(text: str) -> str:
    """A token's text on one line, white space visible, control and format characters as escapes."""
    return escaped(text.translate(_WHITE_SPACE))


def luminance(colour: str) -> float:
    """Relative luminance of ``#rrggbb``, 0 for black to 1 for white (WCAG 2.2)."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def letter_colour(ground: str) -> str:
    """Black or white, whichever is read better on a colour ``#rrggbb``."""
    light = luminance(ground)
    return "#000000" if (light + 0.05) / 0.05 > 1.05 / (light + 0.05) else "#ffffff"


class Readout(NamedTuple):
    """A token of the row whose state is read, with the coefficient of the state in its vector."""

    token: int
    coefficient: float = 1.0


@dataclass(frozen=True)
class Views:
    """The views of a pair whose sides are one state each, or the mean of several.

    Attributes:
        source_end: last token of the source view: on the trunk, or in its own segment.
        source_segment: [start, stop) of a source view that is not on the trunk.
        original: [start, stop) of the target view on the trunk; None where its tokens are not on the trunk.
        copy: [start, stop) of the tokens that are isolated; `original` itself in the `inline` form.
    """

    source_end: int
    source_segment: tuple[int, int] | None
    original: tuple[int, int] | None
    copy: tuple[int, int]


@dataclass(frozen=True)
class RowPair:
    """One pair of a row, whose two sides are compared; all indices count along the row.

    Attributes:
        number: from 1.
        source, target: the weighted states that are summed for either side, by token.
        names: of the two sides.
        views: None where the sides are sums of states of the trunk.
        weight: of the pair in the loss.
    """

    number: int
    source: tuple[Readout, ...]
    target: tuple[Readout, ...]
    names: tuple[str, str] = ("source", "target")
    views: Views | None = None
    weight: float = 1.0

    @property
    def arrow(self) -> tuple[int, int] | None:
        """From the state of which token to which the pair leads; None where it compares sums of states."""
        single = len(self.source) == len(self.target) == 1
        return (self.source[-1].token, self.target[-1].token) if single or self.views else None

    @property
    def title(self) -> str:
        """Its number and weight."""
        weight = f", weight {self.weight:.3g}" if self.weight != 1 else ""
        return f"pair {self.number}{weight}"


@dataclass(frozen=True)
class Lanes:
    """The sections of a row above each other: the trunk on top, below it the branches, then what is isolated.

        ```
        trunk      [user      ][step 1   ][step 2   ][end]
        branches                          [p1 p2]
        targets                                  [step 2   ]
        position   0 ..                   p+1    p+K+1 ..
        ```

    Attributes:
        of_section: (S,) lane of each section.
        names: of the lanes, from the top; the same name for several lanes of one group.
        width: positions in all.
    """

    of_section: tuple[int, ...]
    names: tuple[str, ...]
    width: int


@dataclass(frozen=True)
class RowRecord:
    """The row of one example.

    Attributes:
        texts: L token texts.
        ids, positions, segments, orders, attaches, floors: (L,) int64, as `ForestCollator` hands them to the model.
        names: L segment names: "trunk: user", "trunk: step 1", "branch 1", "source 1", "target 1"; a segment that serves
            several pairs has the number of the first. "predictors" are those within the trunk (`inline`).
        kinds: L of the keys of `KINDS`.
        labelled: (L,) bool, tokens that the LM loss predicts.
        pairs: in the order of the losses.
    """

    texts: tuple[str, ...]
    ids: np.ndarray
    positions: np.ndarray
    segments: np.ndarray
    orders: np.ndarray
    attaches: np.ndarray
    floors: np.ndarray
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    labelled: np.ndarray
    pairs: tuple[RowPair, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def visible(self) -> np.ndarray:
        """(L, L) bool, True where the token of the row sees the token of the column."""
        fields = self.segments, self.orders, self.attaches, self.floors
        segment, order, attach, floor = (field[:, None] for field in fields)  # of who looks
        example = np.zeros_like(self.ids)
        return visible(example[:, None], example, segment, self.segments, order, self.orders, attach, floor)

    @cached_property
    def sections(self) -> list[tuple[int, int]]:
        """[start, stop) of every run of tokens that share segment and name."""
        keys = list(zip(self.segments.tolist(), self.names, strict=True))
        sections = []
        for _, run in groupby(range(len(keys)), keys.__getitem__):
            indices = list(run)
            sections.append((indices[0], indices[-1] + 1))
        return sections

    @cached_property
    def tags(self) -> dict[int, list[str]]:
        """Index of a token -> what is there: where a source view ends, and what is read."""
        marks: dict[tuple[int, str], list[str]] = {}
        for pair in self.pairs:
            if not pair.views or not pair.arrow:
                continue
            places = list(zip(pair.arrow, ("source", "target"), strict=True))
            if not pair.views.source_segment:
                places.insert(0, (pair.views.source_end, "end of source"))
            for place in places:
                marks.setdefault(place, []).append(str(pair.number))
        tags: dict[int, list[str]] = {}
        for (index, name), numbers in marks.items():
            tags.setdefault(index, []).append(f"{name} {', '.join(numbers)}")
        return tags

    @cached_property
    def counts(self) -> str:
        """How many tokens of which kind the row has, and how many pairs."""
        trunk = [name for name in self.names if name.startswith("trunk: ")]
        labelled = int(self.labelled.sum())
        parts = [f"{len(trunk)} on the trunk ({labelled} labelled)"]
        places = {"predictor": "of predictors", "source": "in sources of their own", "target": "in isolated targets"}
        for kind, where in places.items():
            number = self.kinds.count(kind)
            if number:
                parts.append(f"{number} {where}")
        tokens = ", ".join(parts)
        pairs = counted(len(self.pairs), "pair")
        return f"{len(self)} tokens: {tokens}; {pairs}"

    @cached_property
    def lanes(self) -> Lanes:
        """Sections of one group share a lane as far as they do not overlap."""
        names: list[str] = []
        of_section = [0] * len(self.sections)
        for title, words in (("trunk", "trunk: predictors"), ("sources", "branch source"), ("targets", "target")):
            free: list[int] = []  # of each lane of the group, the first free position
            for number, (start, stop) in enumerate(self.sections):
                kind = self.names[start].split()[0]
                if kind not in words.split():
                    continue
                begin = int(self.positions[start])
                end = int(self.positions[stop - 1]) + 1
                open_lanes = (lane for lane, position in enumerate(free) if position <= begin)
                lane = next(open_lanes, len(free))
                free[lane : lane + 1] = [end]
                of_section[number] = len(names) + lane
            names += [title] * len(free)
        return Lanes(tuple(of_section), tuple(names), int(self.positions.max()) + 1)

    def sides(self, pair: RowPair) -> tuple[str, str]:
        """The source and the target of a pair in words: where they are, and which states stand for them."""
        source, target = self._states(pair.source), self._states(pair.target)
        views = pair.views
        if views is None:
            return f"{pair.names[0]}: {source}", f"{pair.names[1]}: {target}"
        where = f"ends at {self._token(views.source_end)}"
        if views.source_segment:
            where = stretch(*views.source_segment)
        copy = stretch(*views.copy)
        if views.original == views.copy:
            copy += " (isolated in its place)"
        elif views.original:
            copy += f" (on the trunk {stretch(*views.original)})"
        return f"source {where}, read at {source}", f"target {copy}, read at {target}"

    def _states(self, terms: tuple[Readout, ...]) -> str:
        """A single state by its token; a sum as ``- h[20] + h[39]``, with the mean of neighbours that weigh the same."""
        if len(terms) == 1 and terms[0].coefficient == 1:
            return self._token(terms[0].token)
        parts = []
        # Neighbours have the same distance between token and rank.
        for (_, coefficient), run in groupby(
            enumerate(terms), lambda item: (item[1].token - item[0], item[1].coefficient)
        ):
            tokens = [term.token for _, term in run]
            states = f"h[{stretch(tokens[0], tokens[-1] + 1)}]"
            if len(tokens) > 1:
                states = f"mean {states}"
            weight = abs(coefficient) * len(tokens)
            factor = "" if f"{weight:.3g}" == "1" else f"{weight:.3g} "
            parts.append(f"{'-' if coefficient < 0 else '+'} {factor}{states}")
        return " ".join(parts).removeprefix("+ ") or "zero"

    def _token(self, index: int) -> str:
        return f'{index} "{token_label(self.texts[index])}"'


def stretch(start: int, stop: int) -> str:
    """The tokens [start, stop): ``4-9``, or ``4``."""
    return f"{start}-{stop - 1}" if stop - start > 1 else f"{start}"


def edges_of(marks: np.ndarray) -> list[int]:
    """[start, stop) of the runs of true marks (L,), one after the other."""
    return np.flatnonzero(np.diff(marks, prepend=False, append=False)).tolist()


def evenly(count: int, most: int) -> list[int]:
    """At most `most` of the numbers below `count`, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int)).tolist()
