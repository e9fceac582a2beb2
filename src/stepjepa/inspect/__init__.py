"""One record of a packed row (its tokens, segments, pairs, and who sees whom), read by terminal, figure and page.

``stepjepa.inspect(...)`` is `view.inspect`: the package is called, because a module of that name would hide the function.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _CallableModule(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Any:
        from stepjepa.inspect.view import inspect

        return inspect(*args, **options)


sys.modules[__name__].__class__ = _CallableModule
