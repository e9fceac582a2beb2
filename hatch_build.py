"""The README as a package index shows it: there, relative links and pictures lead nowhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


def for_index(text: str, repository: str | None) -> str:
    """Relative links lead into the repository; without its address they become plain text, and pictures are left out."""
    picture, link = r"!\[([^\]]*)\]\((?!https?:)([^)]+)\)\n*", r"(?<!!)\[([^\]]*)\]\((?!https?:|#)([^)]+)\)"
    base = (repository or "").rstrip("/")
    text = re.sub(picture, rf"![\1]({base}/raw/main/\2)\n\n" if base else "", text)
    return re.sub(link, rf"[\1]({base}/blob/main/\2)" if base else r"\1", text)


class ReadmeHook(MetadataHookInterface):
    """Called by hatchling for the field `readme`, which pyproject.toml declares dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Put the text into the metadata."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = for_index(text, metadata.get("urls", {}).get("Repository"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
