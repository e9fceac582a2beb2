"""The predictor tokens that a model on disk has, for the commands that read views as training does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import transformers

from stepjepa.evaluation.models import Place, TrainingRecord, softmax_size
from stepjepa.modeling.extras import predictor_rows
from stepjepa.modeling.forward import causal_lm
from stepjepa.modeling.predictors import known_predictors, predictor_names, vocabulary_size


@dataclass(frozen=True)
class Predictors:
    """Predictor tokens of one model, behind its sources.

    Attributes:
        count: K, 0 where it has none.
        ids: K ids in the order in which they stand.
        order, same: as `JEPAOptions.predictor_order` and `same_predictor`.
    """

    count: int
    ids: tuple[int, ...]
    order: str | None
    same: bool

    def in_words(self, head: str | None) -> str:
        """Where sources are read; `head` is the kind of the predictor head."""
        where = "sources at their last token"
        if self.count:
            where = (
                f"sources at the last of {self.count} predictors" if self.count > 1 else "sources at their predictor"
            )
        return f"{where}{f', behind the {head} head' if head else ''}"


def find_predictors(
    model: Any,
    tokenizer: Any,
    place: Place,
    record: TrainingRecord,
    count: int | None,
    order: str | None,
    same: bool | None,
    usual_order: str | None,
) -> Predictors:
    """The predictors of a model: those that lie next to it (`extras.attach_saved`), else those in its vocabulary: kept ones,
    or those that a checkpoint of version 0.1 holds at its end.

    Args:
        count, order, same: as asked for; None is as the model's own run had them.
        usual_order: where neither says.
    """
    own = record.settings
    same = bool(own.get("same_predictor") if same is None else same)
    order = order or own.get("predictor_order") or usual_order
    saved = predictor_rows(causal_lm(model))
    if saved is not None:
        have = len(saved.ids)
        found = int(count if count is not None else own.get("predictors") or have)
        ids = saved.ids[: min(found, 1) if same else found]
        return _ordered(ids if same or len(ids) == found else [], found, order, same)
    rows, added = vocabulary_size(causal_lm(model)), tokenizer.get_added_vocab()
    kept = 0
    while added.get(predictor_names(kept + 1)[-1], rows) < rows:
        kept += 1
    behind = rows - softmax_size(causal_lm(model), tokenizer, place, record) if not kept else 0
    found = int(count if count is not None else (own.get("predictors") or kept) if kept or behind else 0)
    need = min(found, 1) if same else found
    ids = known_predictors(tokenizer, rows, need)
    if not ids and 0 < need <= behind:
        ids = list(range(rows - behind, rows - behind + need))  # a checkpoint has them behind its vocabulary
    return _ordered(ids, found, order, same)


def _ordered(ids: list[int], count: int, order: str | None, same: bool) -> Predictors:
    """`count` predictors with these ids; none where there are no ids."""
    if not ids:
        return Predictors(0, (), order, same)
    ids = ids * count if same else ids
    return Predictors(count, tuple(reversed(ids) if order == "descending" else ids), order, same)


@contextmanager
def quiet() -> Iterator[None]:
    """Without what transformers warns of while it loads."""
    before = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.utils.logging.set_verbosity(before)
