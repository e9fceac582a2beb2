"""Objectives: which views of a chat predict which, one file each. `base` holds what they share and how they are found."""

from stepjepa.objectives.base import Objective, find_objective, objective_of

__all__ = ["Objective", "find_objective", "objective_of"]
