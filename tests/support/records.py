"""Records of made-up rows."""

from stepjepa.inspect import layout
from stepjepa.modeling.extras import predictor_names


def row_record(example, predictors, text_of, *, spans=None, vocabulary=0, **form):
    """The record of an example's row with K predictors, whose ids begin at `vocabulary`; `form` as for `RowForm`."""
    ids = tuple(range(vocabulary, vocabulary + predictors))
    names = dict(enumerate(predictor_names(predictors), vocabulary))
    if spans is None:
        spans = [layout.NamedSpan("prompt", 0, len(example.trunk))]
        spans += [layout.NamedSpan("answer", *span) for span in example.labels]
    return layout.row_record(example, layout.RowForm(ids, names, **form), text_of, spans)
