"""From whatever a user gives as a data set to the examples that training draws."""

from __future__ import annotations

from typing import Any

from stepjepa.data.examples import ExampleStore
from stepjepa.data.report import DataReport
from stepjepa.training.batches import DrawnExamples
from stepjepa.training.config import JEPAConfig
from stepjepa.training.setup import encode


class ExampleReader:
    """Reads data sets for one run.

    Args:
        tokenizer: the run's tokenizer.
        args: its configuration.
        positions: positions that the model has, None for rotary ones.

    Attributes:
        reports: a report on every data set that was read, by name.
    """

    def __init__(self, tokenizer: Any, args: JEPAConfig, positions: int | None):
        self.tokenizer, self.args, self.positions = tokenizer, args, positions
        self.reports: dict[str, DataReport] = {}

    @property
    def pad_id(self) -> int:
        """Fills rows, and stands in for examples that are none."""
        pad = self.tokenizer.pad_token_id
        return (self.tokenizer.eos_token_id or 0) if pad is None else pad

    def read_evaluation(self, source: Any) -> Any:
        """Examples to evaluate on; a plain dict holds several data sets by name, as `transformers.Trainer` takes them."""
        if type(source) is dict:
            return {name: self.read(one, f"eval_{name}") for name, one in source.items()}
        return self.read(source, "eval")

    def read(self, source: Any, name: str, ratio: float = 1.0) -> DrawnExamples | None:
        """Examples of `source` (what `RowSource` takes, an `ExampleStore`, or None), with a share `ratio` of the pairs.

        Raises:
            DataError: as `encode`.
        """
        if source is None or isinstance(source, DrawnExamples):
            return source
        store = source
        if not isinstance(source, ExampleStore):
            store, self.reports[name] = encode(source, self.tokenizer, self.args, self.positions)
        return DrawnExamples(store, self.args, self.args.seed, ratio, self.pad_id)
