"""What encoding needs to know: the part of a run's options that decides how rows become examples."""

from __future__ import annotations

from dataclasses import dataclass

from stepjepa.data.sources import PairColumns
from stepjepa.data.steps import StepRules, StepSplitter


@dataclass(frozen=True)
class EncodeOptions:
    """How rows become examples.

    Attributes:
        objective: ``regular``, ``llm_jepa``, ``step_jepa``, ``split`` or ``semantic_tube``.
        splitter: finds the steps of an answer (``step_jepa``).
        step_pairs: ``first``, ``all``, or ``random`` (encoded as all; one is drawn when the example is).
        last_token: None (by name) or a negative offset; see `views` and `apart`.
        max_length: longest trunk in tokens; what is longer is cut on the right.
        max_positions: positions that the model has, for learned absolute positions; None for rotary models.
        predictors: K, needed with `max_positions` and with views apart.
        system_prompt: put in front of chats that have none.
        strict: a row that cannot be used, or whose answer is cut, is an error instead of a count.
        labels: see `labels.label_spans`.
        views: ``in_context`` (on the trunk) or ``standalone`` (each message alone), for ``llm_jepa``.
        front_pred, reverse_pred: see `apart.ApartOptions`.
        horizons: values of h in step i -> step i + h.
        split_ratio: where ``split`` cuts.
        one_pair: keep the first pair of an example only (`inline`, where a second would see the first one's predictors).
        columns: the two columns that hold the views, None for the known names.
        steps_column, steps_required: see `StepRules`, where they are ``column`` and ``required``.
    """

    objective: str
    splitter: StepSplitter
    step_pairs: str = "first"
    last_token: int | None = None
    max_length: int = 1024
    max_positions: int | None = None
    predictors: int = 0
    system_prompt: str | None = None
    strict: bool = False
    labels: str = "assistant"
    views: str = "in_context"
    front_pred: bool = False
    reverse_pred: bool = False
    horizons: tuple[int, ...] = (1,)
    split_ratio: float = 0.5
    one_pair: bool = False
    columns: PairColumns | None = None
    steps_column: str | None = None
    steps_required: bool = True

    @property
    def rules(self) -> StepRules:
        """How the steps of the rows are found."""
        return StepRules(self.splitter, self.steps_column, self.steps_required and self.steps_column is not None)
