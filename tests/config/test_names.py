"""Names of options in messages are attributes of `Names`, and each of them is an option."""

import importlib
import re
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"


def test_every_name_in_a_message_is_an_option():
    checked = 0
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for variable in re.findall(r"^(\w+) = Names\(", text, re.MULTILINE):
            if path.parent.name == "integrations":  # a plugin needs the package that it is for
                continue
            names = getattr(importlib.import_module(".".join(path.relative_to(SOURCE).with_suffix("").parts)), variable)
            for attribute in re.findall(rf"\b{variable}\.(\w+)", text):
                assert getattr(names, attribute) == attribute, path
                checked += 1
    assert checked > 50
