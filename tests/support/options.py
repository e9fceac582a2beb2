"""Option dataclasses with a field of every kind, for the tests of the command line's parser."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, Optional, Union

from stepjepa.config.option import option


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Options:
    objective: Literal["regular", "llm_jepa", "step_jepa"] = option(
        "step_jepa", "Which pairs are made, 100% of them.", "method"
    )
    jepa_loss: Literal["cosine", "l2", "infonce"] = option("cosine", "", "method")
    predictors: int = option(1, "", "method")
    lbd: float = option(0.1, "Weight of the JEPA loss.", "method")
    jepa_ratio: Optional[float] = None  # noqa: UP045
    horizon: int | None = None
    step_separator: str = "\n\n"
    train_file: str | None = None
    target_encoder: Literal["none", "ema", None] = None
    lora: bool = False
    shuffle: bool = True
    tf32: bool | None = None
    layers: list[int] = field(default_factory=lambda: [0])
    modules: list[str] | None = None
    report_to: None | str | list[str] = "none"
    kwargs: dict[str, Any] | str | None = None
    switches: dict[str, bool] | None = None
    color: Color | str = "red"
    seen: str | bool = "no"
    space: Union[str, None, Literal[False]] = None  # noqa: UP007
    either: Literal[False, "auto"] = "auto"
    level: str = field(default="info", metadata={"choices": ["info", "debug"]})
    plugin: Options | None = None
    derived: int = field(default=0, init=False)


@dataclass
class Trainer:
    output_dir: str = "o"
    verbose: bool = False
    per_device_train_batch_size: int = 8
    max_steps: int = option(-1, "", aliases=("steps",))
    debug: str = ""
    verbosity: int = 0

    def __post_init__(self):
        if self.max_steps == 0:
            raise ValueError("max_steps must not be 0")


ALIASES = {
    "batch_size": "per_device_train_batch_size",
    "step_jepa": ("objective", "step_jepa"),
    "regular": ("objective", "regular"),
    "jepa_l2": ("jepa_loss", "l2"),
    "infonce": ("jepa_loss", "infonce"),
    "use_lora": "lora",
    "debug": {"5": (("verbosity", "5"),), "much": (("verbosity", "9"), ("max_steps", "1"))},
}
