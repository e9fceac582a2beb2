"""Classes and functions of one's own, named ``file.py:Name`` or ``package.module:Name``.

Finding one imports its file, which runs its code. So a name is looked up only where a user gave it: on the command line, in
a YAML file or in Python, never because it is recorded in the folder of a run.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from stepjepa.config.values import did_you_mean, named_by_file
from stepjepa.errors import ConfigError, said

Named = type | Callable[..., object]
_PREFIX = "stepjepa_user_"  # of the modules of files
_GIVEN: dict[str, object] = {}  # what Python code gave, by its name


def load_named(name: str, option: str, known: Sequence[str], again: bool = False) -> object:
    """What ``file.py:Name`` or ``package.module:Name`` names. Loading it runs that file.

    A module is looked for where Python looks, then in the current folder.

    Args:
        option: that the name was given with; `known`: what else it takes, for the message.
        again: run a file again that was loaded before; in a notebook it may have changed.

    Raises:
        ConfigError: it is neither, or cannot be loaded.
    """
    if name in _GIVEN:
        return _GIVEN[name]
    if not named_by_file(name):
        near = did_you_mean(name, known, "{}")
        raise ConfigError(f"{option} is {name!r}; known: {', '.join(known)}, or file.py:Name of your own{near}")
    source, _, attribute = name.rpartition(":")
    try:
        with _current_folder_too():
            file = source.endswith(".py")
            return getattr(_file_module(Path(source), again) if file else importlib.import_module(source), attribute)
    except ConfigError:
        raise
    except AttributeError:
        raise ConfigError(f"{option} {name}: {source} has no {attribute}") from None
    except Exception as error:
        raise ConfigError(f"{option} {name}: {source} cannot be loaded ({said(error)})") from error


def given_name(thing: Named) -> str:
    """The name under which `load_named` finds a class or a function that Python code gave."""
    module = sys.modules[thing.__module__]
    file = getattr(module, "__file__", None)
    by_file = file and (thing.__module__.startswith(_PREFIX) or thing.__module__ == "__main__")
    name = f"{file if by_file else thing.__module__}:{thing.__qualname__}"
    _GIVEN[name] = thing
    return name


@contextmanager
def _current_folder_too() -> Iterator[None]:
    """Modules are looked for where Python looks, then in the current folder."""
    folder = str(Path.cwd())
    added = folder not in sys.path
    sys.path += [folder] * added
    try:
        yield
    finally:
        if added and folder in sys.path:
            sys.path.remove(folder)


def _file_module(path: Path, again: bool) -> ModuleType:
    """The module of a Python file, loaded once, or `again`."""
    path = path.expanduser().resolve()
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such file")
    # By its path: files of one name in several folders are several modules.
    name = f"{_PREFIX}{hashlib.sha256(str(path).encode()).hexdigest()[:12]}_{path.stem}"
    if again or name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def source_fingerprint(thing: Named) -> str:
    """A fingerprint of the module that a class or function is in; its name where there is no source."""
    try:
        return hashlib.sha256(inspect.getsource(sys.modules[thing.__module__]).encode()).hexdigest()[:12]
    except (OSError, TypeError):
        return str(thing.__qualname__)
