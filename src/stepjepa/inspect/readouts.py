"""Where the views of a pair are read, in the text of their tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from stepjepa.data.examples import Example
from stepjepa.inspect.model import LAYOUTS, token_text
from stepjepa.inspect.padding import Form
from stepjepa.inspect.pairs import pair_records

_TAIL = 40  # characters of a view that are shown


class ReadoutText(NamedTuple):
    """One pair.

    Attributes:
        place: of its row.
        source: how the source view ends; `source_token`: the token whose state stands for it.
        target: how the target view ends; `target_token`: the same for it.
    """

    place: str
    source: str
    source_token: str
    target: str
    target_token: str


def readout_texts(place: str, example: Example, tokenizer: Any, form: Form) -> list[ReadoutText]:
    """The pairs of one example, which stands at `place`."""
    if not example.pairs:
        return []
    ids = form.predictor_ids(len(tokenizer))
    names = {index: f"<|predictor_{number}|>" for number, index in enumerate(sorted(set(ids)), 1)}
    forest = LAYOUTS[form.forward](example, ids)
    text = token_text(tokenizer)
    texts = [names.get(index) or text(index) for index in forest.input_ids.tolist()]
    records = pair_records(0, example, forest, 0, texts, np.isin(forest.input_ids, ids))
    found = []
    for record in records:
        end = record.source_end.index + 1
        start, stop = record.copy
        source, target = "".join(texts[max(end - _TAIL, 0) : end]), "".join(texts[start:stop])
        found.append(ReadoutText(place, _tail(source), record.source.text, _tail(target), record.target.text))
    return found


def _tail(text: str) -> str:
    return text if len(text) <= _TAIL else f"...{text[-_TAIL:]}"
