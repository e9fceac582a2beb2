"""A row drawn by its positions: the trunk on top, and below it what hangs off it and what stands alone.

    ```
    trunk      [user      ][step 1   ][step 2   ][end]
    branches                          [p1 p2]
    targets                                  [step 2   ]
    position   0 ..                   p+1    p+K+1 ..
    ```

Shapes: L positions of a row, S sections (`RowRecord.sections`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepjepa.inspect.model import RowRecord

GAP = 4  # columns between examples
_GROUPS = {"branch": 1, "source": 1, "target": 2}


@dataclass(frozen=True)
class Lanes:
    """Where everything stands.

    Attributes:
        columns: (L,) int64; the position of a token within its example, moved on by the examples before it.
        of_section: (S,) lane of each section.
        names: of the lanes, from the top; the same name for several that hold the like.
        width: columns in all.
    """

    columns: np.ndarray
    of_section: tuple[int, ...]
    names: tuple[str, ...]
    width: int


def lanes(record: RowRecord) -> Lanes:
    """Place the tokens of a row; sections of one kind share a lane as far as they do not overlap."""
    columns = record.positions.copy()
    end = 0
    for example in dict.fromkeys(record.examples.tolist()):
        own = record.examples == example
        if example < 0:
            columns[own] = np.arange(own.sum())  # padding has no positions
        columns[own] += end
        end = int(columns[own].max()) + 1 + GAP
    groups: list[list[int]] = [[], [], []]  # for each lane of the group the first column behind what it holds
    found: list[tuple[int, int]] = []
    for start, stop in record.sections():
        group = _GROUPS.get(record.names[start].split(" ")[0], 0)
        first, behind = int(columns[start]), int(columns[stop - 1]) + 1
        free = next((lane for lane, taken in enumerate(groups[group]) if group == 0 or taken <= first), None)
        if free is None:
            free = len(groups[group])
            groups[group].append(0)
        groups[group][free] = behind
        found.append((group, free))
    before = np.cumsum([0, *map(len, groups)]).tolist()
    branches = "sources" if any(name.startswith("source") for name in record.names) else "branches"
    names = [name for name, held in zip(("trunk", branches, "targets"), groups, strict=True) for _ in held]
    return Lanes(columns, tuple(before[group] + lane for group, lane in found), tuple(names), end - GAP)
