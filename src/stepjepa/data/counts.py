"""Counts over the rows of a data set that are made chunk by chunk."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self


class Counts:
    """Numbers, counts, first examples and flags that are made chunk by chunk."""

    def add(self, more: Self) -> None:
        """Count in further rows of the same data set: numbers and counts add up; of all else the earlier stays."""
        for name, value in vars(more).items():
            own = getattr(self, name)
            if isinstance(own, Counts):
                own.add(value)
            elif isinstance(own, Counter):
                own.update(value)
            elif isinstance(own, dict):
                setattr(self, name, {**own, **value, **own})  # in order of their first rows
            else:
                setattr(self, name, own + value if type(own) is int else own or value)

    def to_dict(self) -> dict[str, Any]:
        """A plain record for JSON."""
        values = {name: value.to_dict() if isinstance(value, Counts) else value for name, value in vars(self).items()}
        return {name: dict(value) if isinstance(value, dict) else value for name, value in values.items()}
