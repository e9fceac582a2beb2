"""Multi-step latent prediction: how well the current state predicts the state h reasoning steps later.

The measure of Semantic Step Prediction (arXiv:2604.18464), for models of any objective. A walk is the sequence of trunk
states after the steps of one answer. The state after step t + h is predicted from the state after step t by

    line     s_t + h (s_t - s_{t-1})            not fitted
    linear   W_h s_t + b_h                      ridge regression
    MLP      three layers, at least 256 wide    AdamW with early stopping on validation rows

The models are fitted for each h on the walks of some rows, and evaluated on the walks of others. An error is the mean
squared error divided by that of the mean state, so that it does not depend on the scale of the states: 0 is perfect, 1 as
bad as the mean.

Shapes: M states of all walks, N pairs (t, t + h), D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from stepjepa.analysis.geometry import MIN_ROWS, TEST_SHARE
from stepjepa.analysis.states import Pairs, Walks
from stepjepa.data.types import TRUNK, Example, Pair, Read

# Penalties of the ridge regression, relative to the mean variance of a dimension.
_PENALTIES = 10.0 ** np.arange(-4, 4)
# The MLP's smallest hidden width, optimizer steps, batch size, and steps between two evaluations on the validation rows.
_WIDTH, _STEPS, _BATCH, _EVERY = 256, 400, 256, 20


@dataclass(frozen=True)
class PredictionErrors:
    """Errors of one horizon on held-out rows; the module's docstring defines them.

    Attributes:
        train_pairs, test_pairs: number of pairs for fitting (including validation) and for testing.
    """

    train_pairs: int
    test_pairs: int
    line: float
    linear: float
    mlp: float


def walks_of(pairs: Pairs) -> tuple[list[Example], np.ndarray]:
    """Examples that read the states after the steps of every answer, and the states' `Walks.places`, (M, 2).

    `read_states` reads pairs, so each state is read as a pair with itself.

    Args:
        pairs: read with the options of `states.every_step`.
    """
    examples, places = list[Example](), list[tuple[int, int]]()
    numbered = zip(pairs.rows.tolist(), pairs.examples, strict=True)
    for row, of_row in groupby(numbered, key=itemgetter(0)):
        ends, walk = list[int](), -1
        for _, example in of_row:
            (pair,) = example.pairs
            start = example.sees(pair.source)
            view = example.view_on_trunk(pair.target)
            assert view is not None, "a step is on the trunk"
            # Steps of one answer follow each other without a gap, so a gap starts another answer.
            if ends[-1:] != [start]:
                walk, ends = walk + 1, [*ends, start]
                places.append((row, walk))
            ends.append(view.stop - 1)
            places.append((row, walk))
        reads = [Read.one(TRUNK, end) for end in ends]
        examples.append(Example(example.trunk, (), pairs=tuple(Pair(read, read) for read in reads)))
    return examples, np.array(places, np.int64)


class _Part(NamedTuple):
    """States (N, D) after a step, and after the step to predict, for some rows; centred by the means of the fitted rows."""

    now: np.ndarray
    later: np.ndarray


def prediction_errors(walks: Walks, most: int) -> dict[int, PredictionErrors]:
    """The errors by horizon, 1 to `most`, without horizons that leave fewer than `MIN_ROWS` pairs in a part.

    The parts are training, validation and test. Rows are split, not pairs, so that each answer is in only one part; the
    split depends only on the row numbers.
    """
    rows = np.random.default_rng(0).permutation(np.unique(walks.places[:, 0]))
    held = round(len(rows) * TEST_SHARE)
    # 20 % of the rows are for testing, and 10 % for validation.
    test_rows, validation_rows = rows[:held], rows[held : held + -(-held // 2)]
    errors = {}
    for horizon in range(1, most + 1):
        of_rows, before, now, later = walks.pairs(horizon)
        is_test, is_validation = np.isin(of_rows, test_rows), np.isin(of_rows, validation_rows)
        is_train = ~(is_test | is_validation)
        if min(is_test.sum(), is_validation.sum(), is_train.sum()) < MIN_ROWS:
            continue
        mean, centre = later[is_train].mean(axis=0), now[is_train].mean(axis=0)
        train, validation, test = (
            _Part(now[part] - centre, later[part] - mean)
            for part in (is_train, is_validation, is_test)
        )
        last_step = now[is_test] - before[is_test]
        predicted = {
            "line": now[is_test] + horizon * last_step - mean,
            "linear": _ridge(train, validation, test),
            "mlp": _mlp(train, validation, test),
        }
        scale = np.square(test.later).mean() or np.inf
        ratios = {
            name: float(np.square(states - test.later).mean() / scale)
            for name, states in predicted.items()
        }
        test_pairs = int(is_test.sum())
        errors[horizon] = PredictionErrors(len(is_test) - test_pairs, test_pairs, **ratios)
    return errors


def _ridge(train: _Part, validation: _Part, test: _Part) -> np.ndarray:
    """Predictions (N, D) for the test rows, with the penalty that predicts the validation rows best."""
    # One decomposition serves all penalties.
    left, singular, right = np.linalg.svd(train.now, full_matrices=False)
    projected = left.T @ train.later
    scale = np.square(singular).sum() / train.now.shape[1]
    best_error, best_DD = np.inf, np.zeros(0)
    for penalty in _PENALTIES:
        shrunk = singular / (singular**2 + penalty * scale)
        map_DD = right.T @ (projected * shrunk[:, None])
        residual = validation.now @ map_DD - validation.later
        error = np.square(residual).mean()
        if error < best_error:
            best_error, best_DD = error, map_DD
    return test.now @ best_DD


def _mlp(train: _Part, validation: _Part, test: _Part) -> np.ndarray:
    """Predictions (N, D) for the test rows, by the network as it was when its validation error was lowest."""
    # Division by the root mean square makes training independent of the scale of the states.
    scales = [float(np.sqrt(np.square(side).mean())) or 1.0 for side in train]

    def tensors(part: _Part) -> list[Tensor]:
        return [
            torch.from_numpy(side / scale).float() for side, scale in zip(part, scales, strict=True)
        ]

    (x, y), (valid_x, valid_y), (test_x, _) = tensors(train), tensors(validation), tensors(test)
    width = x.shape[1]
    inside = max(width, _WIDTH)
    best, predicted = float("inf"), torch.zeros_like(test_x)
    # Every run gives the same numbers, and the global generator is left as it was.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(width, inside),
            nn.GELU(),
            nn.Linear(inside, inside),
            nn.GELU(),
            nn.Linear(inside, width),
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for step in range(1, _STEPS + 1):
            chosen = torch.randint(len(x), (min(_BATCH, len(x)),))
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x[chosen]), y[chosen]).backward()
            optimizer.step()
            if step % _EVERY:
                continue
            with torch.no_grad():
                error = float(nn.functional.mse_loss(model(valid_x), valid_y))
                if error < best:
                    best, predicted = error, model(test_x)
    return predicted.double().numpy() * scales[1]
