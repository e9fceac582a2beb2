"""The record of a row: the kind of every token, the states that are read, and who sees whom.

`layout` makes the record of an example; terminal, picture and page show it and share the table of token kinds (`KINDS`). The
record does not implement the visibility rule: `forest.visibility.visible` decides who sees whom.

Colours also differ under deuteranopia: blue against yellow, and light against dark. Nothing is marked by colour alone: kinds
have letters, segments have names. Text from the data is written only through `token_label` or `utils.text.escaped`.

Shapes: L positions of a row, S sections.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
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
    """A kind of token: its letter, its meaning, its style in a terminal, its colours on light and dark backgrounds, and the
    colours of its letter on them."""

    letter: str
    meaning: str
    style: str
    light: str
    dark: str
    on_light: str
    on_dark: str


# In the order of the legend.
KINDS = {
    "prompt": Kind(".", "trunk, no label", "", "#b9c0cc", "#5c6573", "black", "white"),
    "answer": Kind("a", "trunk, labelled", "green", "#6cb2e6", "#2f74a8", "black", "white"),
    "source_end": Kind(
        "s",
        "end of a source view on the trunk",
        "bold yellow",
        "#0b4a80",
        "#b4dcff",
        "white",
        "black",
    ),
    "original": Kind(
        "o",
        "a target view's original on the trunk",
        "cyan",
        "#f4e66a",
        "#efe374",
        "black",
        "black",
    ),
    "isolated": Kind(
        "i",
        "a target view isolated in place",
        "blue",
        "#dc8a12",
        "#d0891a",
        "black",
        "black",
    ),
    "predictor": Kind(
        "p", "predictor token", "bold magenta", "#b5402a", "#d24a33", "white", "black"
    ),
    "source": Kind(
        "v",
        "a source view in its own segment",
        "yellow",
        "#7a68b8",
        "#a796ea",
        "white",
        "black",
    ),
    "target": Kind(
        "t", "isolated copy of a target view", "blue", "#dc8a12", "#d0891a", "black", "black"
    ),
}


# A middle dot and arrows, as editors show white space.
_WHITE_SPACE = str.maketrans({" ": "\u00b7", "\n": "\u21b5", "\t": "\u21e5"})


def token_label(text: str) -> str:
    """A token's text on one line, white space visible, control and format characters as escapes."""
    return escaped(text.translate(_WHITE_SPACE))


class Readout(NamedTuple):
    """A token whose state is read, with the state's coefficient in the vector of one side of the pair."""

    token: int
    coefficient: float = 1.0


@dataclass(frozen=True)
class Views:
    """The views of a pair whose sides are one state each, or the mean of several.

    Attributes:
        source_end: last token of the source view, on the trunk or in its own segment.
        source_segment: [start, stop) of a source view in a separate segment; None if the view is on the trunk.
        original: [start, stop) of the target view on the trunk; None if its tokens are not there.
        copy: [start, stop) of the isolated tokens; the same as `original` in the `inline` form.
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
        source, target: the weighted states, by token, whose sum is the vector of the side.
        names: the names of the two sides.
        views: the two views; None if the sides are sums of states of the trunk.
        weight: the weight of the pair in the loss.
    """

    number: int
    source: tuple[Readout, ...]
    target: tuple[Readout, ...]
    names: tuple[str, str] = ("source", "target")
    views: Views | None = None
    weight: float = 1.0

    @property
    def arrow(self) -> tuple[int, int] | None:
        """The tokens (source, target) whose states the pair compares; None if it compares sums of states."""
        single = len(self.source) == len(self.target) == 1
        return (self.source[-1].token, self.target[-1].token) if single or self.views else None

    @property
    def title(self) -> str:
        """Its number and weight."""
        weight = f", weight {self.weight:.3g}" if self.weight != 1 else ""
        return f"pair {self.number}{weight}"


@dataclass(frozen=True)
class Lanes:
    """The sections of a row in lanes by position: the trunk on top, below it each branch, then each isolated target.

        ```
        trunk      [user      ][step 1   ][step 2   ][end]
        branches                          [p1 p2]
        targets                                  [step 2   ]
        position   0 ..                   p+1    p+K+1 ..
        ```

    Attributes:
        of_section: (S,) lane of each section.
        names: names of the lanes, from the top; the lanes of one group have the same name.
        width: the number of positions.
    """

    of_section: tuple[int, ...]
    names: tuple[str, ...]
    width: int


@dataclass(frozen=True)
class RowRecord:
    """The row of one example.

    Attributes:
        texts: L token texts.
        ids, positions, segments, orders, attaches, floors: (L,) int64, as `ForestCollator` passes them to the model.
        names: L segment names: "trunk: user", "trunk: step 1", "branch 1", "source 1", "target 1"; a segment of several
            pairs has the number of the first pair. Predictor tokens within the trunk (`inline`) are named "predictors".
        kinds: L keys of `KINDS`.
        labelled: (L,) bool, tokens on which the LM loss is computed.
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
        # Queries go down (L, 1), keys across (L,). The row has one example, so all example numbers are equal.
        segment, order, attach, floor = (field[:, None] for field in fields)
        example = np.zeros_like(self.ids)
        return visible(
            example[:, None], example, segment, self.segments, order, self.orders, attach, floor
        )

    @cached_property
    def sections(self) -> list[tuple[int, int]]:
        """[start, stop) of every run of tokens that share segment and name."""
        keys = list(zip(self.segments.tolist(), self.names, strict=True))
        starts = [at for at in range(len(keys)) if at == 0 or keys[at] != keys[at - 1]]
        return list(pairwise([*starts, len(keys)]))

    @cached_property
    def tags(self) -> dict[int, list[str]]:
        """Index of a token -> notes on it: which source views end there, and which pairs read its state."""
        tags: dict[int, list[str]] = {}
        for pair in self.pairs:
            if pair.views is None or pair.arrow is None:
                continue
            source, target = pair.arrow
            if pair.views.source_segment is None:
                tags.setdefault(pair.views.source_end, []).append(f"end of source {pair.number}")
            tags.setdefault(source, []).append(f"source {pair.number}")
            tags.setdefault(target, []).append(f"target {pair.number}")
        return tags

    @cached_property
    def counts(self) -> str:
        """The numbers of tokens by place and of pairs, in words."""
        trunk = [name for name in self.names if name.startswith("trunk: ")]
        labelled = int(self.labelled.sum())
        places = {
            "predictor": "of predictors",
            "source": "in separate sources",
            "target": "in isolated targets",
        }
        elsewhere = [
            f"{self.kinds.count(kind)} {where}"
            for kind, where in places.items()
            if kind in self.kinds
        ]
        on_trunk = f"{len(trunk)} on the trunk ({labelled} labelled)"
        tokens = ", ".join([on_trunk, *elsewhere])
        pairs = counted(len(self.pairs), "pair")
        return f"{len(self)} tokens: {tokens}; {pairs}"

    @cached_property
    def lanes(self) -> Lanes:
        """The lanes of the sections."""
        names = ["trunk"]
        of_section = [0] * len(self.sections)
        for group, begin in (("sources", ("branch", "source")), ("targets", ("target",))):
            for number, (start, _) in enumerate(self.sections):
                if self.names[start].startswith(begin):
                    of_section[number] = len(names)
                    names.append(group)
        return Lanes(tuple(of_section), tuple(names), int(self.positions.max()) + 1)

    def sides(self, pair: RowPair) -> tuple[str, str]:
        """The source and the target of a pair in words: where they are, and where their states are read."""
        source, target = self._states(pair.source), self._states(pair.target)
        views = pair.views
        if views is None:
            return f"{pair.names[0]}: {source}", f"{pair.names[1]}: {target}"
        where = f"ends at {self._token(views.source_end)}"
        if views.source_segment:
            where = stretch(*views.source_segment)
        copy = stretch(*views.copy)
        if views.original == views.copy:
            copy += " (isolated in place)"
        elif views.original:
            copy += f" (on the trunk {stretch(*views.original)})"
        return f"source {where}, read at {source}", f"target {copy}, read at {target}"

    def _states(self, terms: tuple[Readout, ...]) -> str:
        """The states in words: one state by its token, a sum as ``- h[20] + h[39]``, equal neighbours as a mean."""
        if len(terms) == 1 and terms[0].coefficient == 1:
            return self._token(terms[0].token)
        parts = []
        # Neighbouring tokens have the same difference between token and rank.
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
    """At most `most` of the numbers below `count`, evenly spaced, including the first and the last one."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int)).tolist()
