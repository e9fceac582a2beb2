"""Reading configurations."""

from __future__ import annotations

from typing import Any


def text_config(config: Any) -> Any:
    """The part of a model's configuration that is about text (multimodal configurations hold it inside)."""
    return config.get_text_config() if hasattr(config, "get_text_config") else config
