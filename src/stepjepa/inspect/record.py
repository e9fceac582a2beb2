"""The record of a packed row: what every token is, what is read where, and who sees whom.

Terminal, figure and page are readers of this record, which `layout` makes of examples; the table of the kinds of tokens
(`KINDS`) is theirs too. It holds no rule of its own: `forest.visibility.visible` says who sees whom.

Colours differ under deuteranopia too: blue against yellow, and light against dark. No colour is the only mark of anything:
kinds have letters, segments have names. Text from the data is written only through `token_label` or `utils.text.escaped`.

Shapes: L positions of a row, S sections.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from stepjepa.forest.visibility import visible
from stepjepa.utils.text import counted, escaped

# The integer fields of a row: the collator's name -> the record's.
FIELDS = {
    "input_ids": "ids",
    "position_ids": "positions",
    "example": "examples",
    "segment": "segments",
    "order": "orders",
    "attach": "attaches",
    "floor": "floors",
}
GAP = 4  # columns between examples
_LANES = {"branch": 1, "source": 1, "target": 2}  # the first word of a section's name -> its group of lanes


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
    "span": Kind("x", "within a sampled span", "cyan", "#f4e66a", "#efe374"),
    "predictor": Kind("p", "predictor token", "bold magenta", "#b5402a", "#d24a33"),
    "source": Kind("v", "a source view in a segment of its own", "yellow", "#7a68b8", "#a796ea"),
    "target": Kind("t", "isolated copy of a target view", "blue", "#dc8a12", "#d0891a"),
    "padding": Kind("-", "padding, which sees itself alone", "dim", "#eceef2", "#2b323e"),
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
class Vector:
    """One state, or a weighted sum of states.

    Attributes:
        terms: by token.
        name: of a sum, such as ``T - P``.
        covered: [start, stop) of the token stretches that a sum covers; ``h[39] - h[20]`` covers the tokens 21 to 39.
    """

    terms: tuple[Readout, ...]
    name: str = ""
    covered: tuple[tuple[int, int], ...] = ()

    @property
    def index(self) -> int:
        """Where a single state is read."""
        return self.terms[0].token


@dataclass(frozen=True)
class Views:
    """The views of a pair whose sides are one state each, or the mean of several.

    Attributes:
        source_end: last token of the source view: on the trunk, or in its own segment.
        source_segment: [start, stop) of the source's own segment; None where it is read on the trunk or in a branch.
        original: [start, stop) of the target view on the trunk; None where its tokens are not on the trunk.
        copy: [start, stop) of the tokens that are isolated; `original` itself in the `inline` form.
        standalone: the source view is not on the trunk.
    """

    source_end: int
    source_segment: tuple[int, int] | None
    original: tuple[int, int] | None
    copy: tuple[int, int]
    standalone: bool


@dataclass(frozen=True)
class RowPair:
    """One pair of a row, whose two sides are compared; all indices count along the row.

    Attributes:
        example: number of the example in its batch.
        number: from 1, within the example.
        source, target: the two sides.
        ends: the states that are named: of views "source" and "target" (of a mean the last), of sums those that bound what
            was sampled.
        views: None for sums of states, which are named by `objectives.base.VectorNames`.
        kind: what such sums are called.
        weight: of the pair in the loss.
        total: the sum of both sides, where that is of interest.
    """

    example: int
    number: int
    source: Vector
    target: Vector
    ends: tuple[tuple[str, int], ...] = ()
    views: Views | None = None
    kind: str = ""
    weight: float = 1.0
    total: Vector | None = None

    @property
    def arrow(self) -> tuple[int, int] | None:
        """From the state of which token to which the pair leads; None where it compares sums of states."""
        if self.views:
            (_, source), (_, target) = self.ends
            return source, target
        single = len(self.source.terms) == len(self.target.terms) == 1
        return (self.source.index, self.target.index) if single else None


@dataclass(frozen=True)
class Lanes:
    """A row by its positions: the trunk on top, below it the branches, then what is isolated.

        ```
        trunk      [user      ][step 1   ][step 2   ][end]
        branches                          [p1 p2]
        targets                                  [step 2   ]
        position   0 ..                   p+1    p+K+1 ..
        ```

    Attributes:
        columns: (L,) int64; the position of a token within its example, moved on by the examples before it.
        of_section: (S,) lane of each section.
        names: of the lanes, from the top; the same name for several lanes of one group.
        width: columns in all.
    """

    columns: np.ndarray
    of_section: tuple[int, ...]
    names: tuple[str, ...]
    width: int


@dataclass(frozen=True)
class RowRecord:
    """One row of one or several examples.

    Attributes:
        texts: L token texts.
        ids, positions, examples, segments, orders, attaches, floors: (L,) int64, as `ForestCollator` hands them to the model
            (`examples` counts from 0 along the batch; -1 is padding).
        names: L segment names: "trunk: user", "trunk: step 1", "branch 1", "source 1", "target 1"; a segment that serves
            several pairs has the number of the first. "predictors" are those within the trunk (`inline`).
        kinds: L of the keys of `KINDS`.
        labelled: (L,) bool, tokens that the LM loss predicts.
        pairs: in the order of the losses.
        batch: examples of the batch; where there are several, this row may hold some of them.
    """

    texts: tuple[str, ...]
    ids: np.ndarray
    positions: np.ndarray
    examples: np.ndarray
    segments: np.ndarray
    orders: np.ndarray
    attaches: np.ndarray
    floors: np.ndarray
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    labelled: np.ndarray
    pairs: tuple[RowPair, ...] = ()
    batch: int = 1

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def visible(self) -> np.ndarray:
        """(L, L) bool, True where the token of the row sees the token of the column."""
        fields = self.examples, self.segments, self.orders, self.attaches, self.floors
        example, segment, order, attach, floor = (field[:, None] for field in fields)  # of who looks
        return visible(example, self.examples, segment, self.segments, order, self.orders, attach, floor)

    @cached_property
    def sections(self) -> list[tuple[int, int]]:
        """[start, stop) of every run of tokens that share example, segment and name; padding is one run."""
        segments = np.where(self.examples < 0, -1, self.segments)
        return runs(list(zip(self.examples.tolist(), segments.tolist(), self.names, strict=True)))

    def section_name(self, start: int) -> str:
        """The name of the section that begins at `start`, with its example's number where there are several."""
        number = int(self.examples[start])
        return f"{number} {self.names[start]}" if self.batch > 1 and number >= 0 else self.names[start]

    @cached_property
    def readouts(self) -> dict[int, dict[str, list[RowPair]]]:
        """Index of a token -> what is read there -> for which pairs, in the order of the pairs."""
        reads: dict[int, dict[str, list[RowPair]]] = {}
        for pair in self.pairs:
            for name, index in pair.ends:
                reads.setdefault(index, {}).setdefault(name, []).append(pair)
        return reads

    @cached_property
    def marked(self) -> dict[int, str]:
        """Index of a token -> what is read there: of views every state, of sums those that are named."""
        roles = {index: name for pair in self.pairs for name, index in pair.ends}
        views = [pair for pair in self.pairs if pair.views]
        roles |= {term.token: "source" for pair in views for term in pair.source.terms}
        return roles | {term.token: "target" for pair in views for term in pair.target.terms}

    @cached_property
    def counts(self) -> str:
        """How many tokens of which kind the row has, and how many pairs."""
        trunk = sum(name.startswith("trunk: ") for name in self.names)
        parts = [f"{trunk} on the trunk ({int(self.labelled.sum())} labelled)"]
        if "predictor" in self.kinds:
            parts.append(counted(self.kinds.count("predictor"), "predictor"))
        places = {"source": "in sources of their own", "target": "in isolated targets", "padding": "of padding"}
        for kind, where in places.items():
            number = self.kinds.count(kind)
            if number:
                parts.append(f"{number} {where}")
        nouns: tuple[str, ...] = ("pair",)
        if self.pairs and not self.pairs[0].arrow:
            nouns = ("span",) if self.pairs[0].ends else ("pair of vectors", "pairs of vectors")
        what = "positions" if "padding" in self.kinds else "tokens"
        return f"{len(self)} {what}: {', '.join(parts)}; {counted(len(self.pairs), *nouns)}"

    @cached_property
    def lanes(self) -> Lanes:
        """The row by positions; sections of one group share a lane as far as they do not overlap."""
        columns, end = self.positions.copy(), 0
        for example in dict.fromkeys(self.examples.tolist()):
            own = self.examples == example
            if example < 0:
                columns[own] = np.arange(own.sum())  # padding has no positions
            columns[own] += end
            end = int(columns[own].max()) + 1 + GAP
        groups: list[list[int]] = [[], [], []]  # for each lane of the group the first free column
        places: list[tuple[int, int]] = []  # of each section: its group, and its lane there
        for start, stop in self.sections:
            word = self.names[start].split(" ")[0]
            group = _LANES.get(word, 0)
            first, after = int(columns[start]), int(columns[stop - 1]) + 1
            lanes = groups[group]
            free = [lane for lane, column in enumerate(lanes) if group == 0 or column <= first]
            lane = free[0] if free else len(lanes)
            lanes[lane : lane + 1] = [after]
            places.append((group, lane))
        apart = any(name.startswith("source") for name in self.names)
        titles = "trunk", "sources" if apart else "branches", "targets"
        names = [title for title, lanes in zip(titles, groups, strict=True) for _ in lanes]
        before = [0, len(groups[0]), len(groups[0]) + len(groups[1])]
        of_section = tuple(before[group] + lane for group, lane in places)
        return Lanes(columns, of_section, tuple(names), end - GAP)


def heading(records: Sequence[RowRecord], number: int) -> str:
    """What stands above row `number` of several; empty above a single one."""
    return f"packed row {number + 1} of {len(records)}" if len(records) > 1 else ""


def runs(keys: Sequence[Hashable]) -> list[tuple[int, int]]:
    """[start, stop) of the runs of equal neighbours."""
    edges = [0, *(i for i in range(1, len(keys)) if keys[i] != keys[i - 1]), len(keys)]
    return list(zip(edges[:-1], edges[1:], strict=True)) if keys else []


def edges_of(marks: np.ndarray) -> list[int]:
    """[start, stop) of the runs of true marks (L,), one after the other."""
    return np.flatnonzero(np.diff(marks, prepend=False, append=False)).tolist()
