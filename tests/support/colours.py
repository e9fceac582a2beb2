"""Colours as people see them: CIE Lab, and what deuteranopia leaves of them."""

from itertools import combinations

import numpy as np

# Machado, Oliveira and Fernandes, "A physiologically-based model for simulation of color vision deficiency" (2009), table 1:
# deuteranomaly of severity 1, on linear sRGB.
DEUTERANOPIA = np.array(
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
)
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
)


def linear(colour):
    values = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def luminance(colour):
    """Relative luminance of ``#rrggbb``, 0 for black to 1 for white (WCAG 2.2)."""
    return float(TO_XYZ[1] @ linear(colour))


def lab(rgb):
    scaled = TO_XYZ @ np.clip(rgb, 0, 1) / np.array([0.95047, 1, 1.08883])
    x, y, z = np.where(scaled > 0.008856, np.cbrt(scaled), 7.787 * scaled + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def assert_told_apart(colours):
    """Any two differ clearly, under deuteranopia too."""
    for pair in combinations(colours, 2):
        for matrix in (np.eye(3), DEUTERANOPIA):
            one, other = (lab(matrix @ linear(colour)) for colour in pair)
            assert np.linalg.norm(one - other) > 18, pair
