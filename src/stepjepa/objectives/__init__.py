"""Objectives: which views of a chat predict which, one file each. `base` has the base class and the lookup by name."""

from stepjepa.config.option import option
from stepjepa.data.types import Pair, PairsFound
from stepjepa.objectives.base import Objective, find_objective, objective_of
from stepjepa.objectives.options import Defaults
from stepjepa.objectives.pairs import PairBuilder

__all__ = [
    "Defaults",
    "Objective",
    "Pair",
    "PairBuilder",
    "PairsFound",
    "find_objective",
    "objective_of",
    "option",
]
