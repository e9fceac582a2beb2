"""Records of made-up rows."""

from unittest.mock import patch

from stepjepa.inspect.layout import row_records
from stepjepa.inspect.record import Form


def row_record(examples, predictors, text_of, *, predictor_order="ascending", same_predictor=False, **options):
    """The record of one row that holds all `examples`; `options` as for `row_records`, with ``forward``."""
    form = Form(predictors, predictor_order == "descending", same_predictor, options.pop("forward", "packed"))
    with patch("stepjepa.inspect.layout.plan_rows", lambda lengths, *limits: [range(len(lengths))]):
        (record,) = row_records(examples, form, text_of, **options)
    return record
