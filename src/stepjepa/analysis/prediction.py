"""Multi-step latent prediction: how well the state h reasoning steps later follows from the present one.

The measure of Semantic Step Prediction (arXiv:2604.18464), for models of any objective. A walk is the states on the trunk
behind the steps of one answer, in order. From the state behind step t, that behind step t + h is predicted by

    line     s_t + h (s_t - s_{t-1})            nothing is fitted
    linear   W_h s_t + b_h                      ridge regression
    MLP      three layers, at least 256 wide    AdamW, stopped where the validation rows are predicted best

fitted for each h on the walks of some rows and measured on those of others. An error is the mean squared one over that of
predicting the mean state, so that models with states of another size compare: 0 is perfect, 1 as bad as the mean.

Shapes: M states of all walks, N pairs (t, t + h), D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import numpy as np
import torch
from torch import nn

from stepjepa.analysis.geometry import MIN_ROWS, TEST_SHARE
from stepjepa.analysis.states import Pairs, Walks
from stepjepa.data.types import TRUNK, Example, Pair, Read

MOST_HORIZONS = 5  # of states that were saved, where no other number is given
_PENALTIES = 10.0 ** np.arange(-4, 4)  # of the ridge, relative to the mean variance of a dimension
# Of the MLP: least width inside, optimizer steps, pairs of one, steps between two looks at the validation rows.
_WIDTH, _STEPS, _BATCH, _EVERY = 256, 400, 256, 20


@dataclass(frozen=True)
class PredictionErrors:
    """Errors of one horizon on held-out rows, see above.

    Attributes:
        train_pairs, test_pairs: how many were fitted (validation included) and measured.
    """

    train_pairs: int
    test_pairs: int
    line: float
    linear: float
    mlp: float


def walks_of(pairs: Pairs) -> tuple[list[Example], np.ndarray]:
    """The states behind the steps of every answer, as examples of which each pair is one state twice, and their
    `Walks.places`, (M, 2).

    Args:
        pairs: of the objective `every_step`.
    """
    examples, places = list[Example](), list[tuple[int, int]]()
    for row, of_row in groupby(zip(pairs.rows.tolist(), pairs.examples, strict=True), key=itemgetter(0)):
        ends, walk = list[int](), -1
        for _, example in of_row:
            (pair,) = example.pairs
            start, view = example.sees(pair.source), example.view_on_trunk(pair.target)
            assert view is not None, "a step stands on the trunk"
            if ends[-1:] != [start]:  # of another answer
                walk, ends = walk + 1, [*ends, start]
                places.append((row, walk))
            ends.append(view.stop - 1)
            places.append((row, walk))
        reads = [Read.one(TRUNK, end) for end in ends]
        examples.append(Example(example.trunk, (), pairs=tuple(Pair(read, read) for read in reads)))
    return examples, np.array(places, np.int64)


def prediction_errors(walks: Walks, most: int) -> dict[int, PredictionErrors]:
    """The errors by horizon, 1 to `most`, but for those with fewer than `MIN_ROWS` pairs to measure or to fit. The split of
    the rows depends on them alone."""
    rows, errors = np.unique(walks.places[:, 0]), {}
    shuffled, held = np.random.default_rng(0).permutation(rows), round(len(rows) * TEST_SHARE)
    test_rows, validation_rows = shuffled[:held], shuffled[held : held + -(-held // 2)]  # 2 and 1 of 10
    for horizon in range(1, most + 1):
        of_rows, before, now, later = walks.pairs(horizon)
        test, validation = np.isin(of_rows, test_rows), np.isin(of_rows, validation_rows)
        train = ~(test | validation)
        if min(test.sum(), validation.sum(), train.sum()) < MIN_ROWS:
            continue
        mean, centre = later[train].mean(axis=0), now[train].mean(axis=0)
        fitted, chosen, measured = ((now[part] - centre, later[part] - mean) for part in (train, validation, test))
        line, expected = now[test] + horizon * (now[test] - before[test]) - mean, measured[1]
        predicted = line, _ridge(fitted, chosen, measured), _mlp(fitted, chosen, measured)
        found = [np.square(one - expected).mean() for one in predicted]
        scale = np.square(expected).mean() or np.inf
        errors[horizon] = PredictionErrors(int((~test).sum()), int(test.sum()), *(float(one / scale) for one in found))
    return errors


Both = tuple[np.ndarray, np.ndarray]  # states and what they must predict, (N, D) each, centred by the fitted rows


def _ridge(train: Both, validation: Both, test: Both) -> np.ndarray:
    """Predictions (N, D) of the test rows, with the penalty that predicts the validation rows best."""
    x_ND, y_ND = train
    left, singular, right = np.linalg.svd(x_ND, full_matrices=False)
    projected, scale = left.T @ y_ND, np.square(singular).sum() / x_ND.shape[1]
    maps = (right.T @ (projected * (singular / (singular**2 + one * scale))[:, None]) for one in _PENALTIES)
    return test[0] @ min(maps, key=lambda map_DD: float(np.square(validation[0] @ map_DD - validation[1]).mean()))


def _mlp(train: Both, validation: Both, test: Both) -> np.ndarray:
    """Predictions (N, D) of the test rows."""
    scales = [float(np.sqrt(np.square(side).mean())) or 1.0 for side in train]
    (x, y), (valid_x, valid_y), (test_x, _) = (
        [torch.from_numpy(side / scale).float() for side, scale in zip(part, scales, strict=True)]
        for part in (train, validation, test)
    )
    width, best, found = x.shape[1], float("inf"), torch.zeros_like(test_x)
    inside = max(width, _WIDTH)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [nn.Linear(width, inside), nn.GELU(), nn.Linear(inside, inside), nn.GELU(), nn.Linear(inside, width)]
        model = nn.Sequential(*layers)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for step in range(1, _STEPS + 1):
            chosen = torch.randint(len(x), (min(_BATCH, len(x)),))
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x[chosen]), y[chosen]).backward()
            optimizer.step()
            if step % _EVERY == 0:
                with torch.no_grad():
                    error = float(nn.functional.mse_loss(model(valid_x), valid_y))
                    if error < best:
                        best, found = error, model(test_x)
    return found.double().numpy() * scales[1]
