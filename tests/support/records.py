"""Records of made-up rows."""

from unittest.mock import patch

from stepjepa.inspect.layout import RowForm, row_records
from stepjepa.modeling.extras import predictor_names
from stepjepa.objectives.semantic_tube import SemanticTube
from support.tube import tube_options


def form_of(predictors, vocabulary=0, predictor_order="ascending", same_predictor=False, **options):
    """How K predictors, whose ids begin at `vocabulary`, are laid out; `options` as for `RowForm`."""
    ids = [vocabulary + (0 if same_predictor else number) for number in range(predictors)]
    names = tuple(predictor_names(len(set(ids))))
    return RowForm(tuple(ids[::-1] if predictor_order == "descending" else ids), names, vocabulary, **options)


def row_record(examples, predictors, text_of, *, spans=None, **options):
    """The record of one row that holds all `examples`; `options` as for `form_of`."""
    with patch("stepjepa.inspect.layout.plan_rows", lambda lengths, *limits: [range(len(lengths))]):
        (record,) = row_records(examples, form_of(predictors, **options), text_of, spans)
    return record


def tube_record(examples, text_of, mode="span", **options):
    """As `row_record`, of the pairs of a semantic tube in one of its modes."""
    return row_record(examples, 0, text_of, vector_names=SemanticTube(tube_options(mode=mode)).vector_names, **options)
