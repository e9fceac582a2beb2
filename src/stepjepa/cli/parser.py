"""A strict parser of command lines and YAML files into option dataclasses.

`HfArgumentParser` finds the options: it walks the dataclasses and resolves their type hints. Everything that
decides what a value means is done here and in `stepjepa.cli.values`, because argparse takes abbreviations,
exits the process, and lets YAML values through unchecked. Importing this module loads neither torch nor the rest of
transformers, which takes longer than a help text may.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from stepjepa.cli.options import MISSING, Option
from stepjepa.cli.values import BadValue, convert, nearest
from stepjepa.cli.yaml_file import Entry, dump_yaml, read_yaml
from stepjepa.errors import ConfigError

__all__ = ["Alias", "StrictParser", "dump_yaml"]

Alias = Union[str, "tuple[str, str]", Callable[[str], "dict[str, Any]"]]


def _hf_argument_parser() -> Any:
    """`transformers.HfArgumentParser`: the module's own file, run under its own name, without the package around it.

    What imports transformers later finds the module in `sys.modules`, and the same class in it. Should the file ever need
    its package, the import system brings that in.
    """
    name = "transformers.hf_argparser"
    package = importlib.util.find_spec("transformers")
    file = Path(package.origin).with_name("hf_argparser.py") if package and package.origin else None
    if file and file.is_file() and not {name, "transformers"} & sys.modules.keys():
        spec: Any = importlib.util.spec_from_file_location(name, file)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return importlib.import_module(name).HfArgumentParser


if TYPE_CHECKING:
    from transformers.hf_argparser import HfArgumentParser
else:
    HfArgumentParser = _hf_argument_parser()

_FLAG = re.compile(r"--([A-Za-z][\w-]*)(?:=(.*))?", re.DOTALL)
_BARE = object()  # stands for the value of a flag that was written without one


@dataclasses.dataclass(frozen=True)
class _Setting:
    field: str
    value: Any
    spelling: str  # as the user wrote it: "--lbd", or "run.yaml:3: lbd"
    alias: bool


class StrictParser(HfArgumentParser):
    """Parses flags and `--config run.yaml`, flags winning, into instances of dataclasses.

    Args:
        dataclass_types: a dataclass or several; a field name may occur once among them. A field's metadata
            may give `help`, `group` (the heading it stands under in the help), `choices`, and `aliases`.
        aliases: other spellings, without leading dashes, for flags and YAML keys alike. One maps to

            - a field's name: `{"batch_size": "per_device_train_batch_size"}`;
            - a field and the value that the spelling alone gives it: `{"regular": ("objective", "regular")}`.
              `--regular true` is the same, `--regular false` and `regular: false` set nothing;
            - a function from the value's text to the fields that it sets. It may bear the name of a field,
              which it then stands in front of, so it can tell two meanings of one flag apart: for
              `--debug 5` it returns `{"verbosity": "5"}`, for anything else `{"debug": value}`. Strings
              that it returns are converted as if they had been written for that field, other values are
              taken as they are; it may raise ValueError or ConfigError. A YAML list or mapping under such
              a name goes to the field of that name directly.

    After `parse`, `explicit` holds the names of the fields that a flag or the YAML file has set.
    """

    def __init__(self, dataclass_types: Any, *, aliases: dict[str, Alias] | None = None, **kwargs: Any) -> None:
        self.options: dict[str, Option] = {}
        self.aliases: dict[str, Alias] = {_plain(name): target for name, target in (aliases or {}).items()}
        self.explicit: set[str] = set()
        self._titles: dict[str, Any] = {}
        kwargs = {"formatter_class": argparse.HelpFormatter, "allow_abbrev": False, **kwargs}
        super().__init__(dataclass_types, **kwargs)
        self.add_argument("--config", metavar="FILE", help="a YAML file of options; flags win over it")
        for name, target in self.aliases.items():
            field = target if isinstance(target, str) else target[0] if isinstance(target, tuple) else None
            if field is not None and field not in self.options:
                raise ValueError(f"alias {name!r} leads to {field!r}, which is no field of {self.dataclass_types}")
            if isinstance(target, tuple):
                self.options[target[0]].read(target[1])

    def parse(self, argv: Sequence[str] | None = None) -> tuple[Any, ...]:
        """Instances of the dataclasses, in their order. `argv` is `sys.argv[1:]` if None.

        Raises:
            ConfigError: for everything that the user can mend; values that a dataclass's own checks refuse
                with a ValueError or OSError included.
            SystemExit: with code 0, after printing the help for `--help`.
        """
        config, flags = self._split(list(sys.argv[1:] if argv is None else argv))
        given: dict[str, _Setting] = {}
        if config is not None:
            given.update(_merge(s for entry in read_yaml(config) for s in self._from_yaml(config, entry)))
        given.update(_merge(s for spelling, words in flags for s in self._from_flag(spelling, words)))
        self.explicit = set(given)
        required = [o.name for o in self.options.values() if o.default is MISSING and o.hint is not bool]
        missing = [name for name in required if name not in given]
        if missing:
            names = " and ".join("--" + name for name in missing)
            raise ConfigError(f"{names} must be given, as a flag or in the --config file")
        try:
            return tuple(dtype(**self._inputs(dtype, given)) for dtype in self.dataclass_types)
        except (ValueError, OSError) as error:
            raise ConfigError(str(error)) from error

    def check_flags(self, argv: Sequence[str], others: Callable[[], Collection[str]]) -> None:
        """Refuse misspelt flags early: such as are neither this parser's nor among `others`, which is asked only where there
        are any; where it knows no names, nothing is refused.

        Raises:
            ConfigError: a flag that nobody knows; the message names the nearest one.
        """
        own, known = {*self.options, *self.aliases, "config", "help", "help_all"}, set[str]()
        for before, word in zip(["", *argv], argv, strict=False):
            match = _FLAG.fullmatch(word)
            name = _plain(match[1]) if match else "help"
            if {name, name.removeprefix("no_")} & own:
                continue
            known = known or {*others()}
            if known and not {name, name.removeprefix("no_")} & known:
                waiting = self.options.get(_plain(before)) if before.startswith("--") else None
                way = f"; for a value, write {before}={word}" if waiting and not waiting.boolean else ""
                raise ConfigError(f"unknown flag {word.partition('=')[0]}{self._hint(name, known)}{way}")

    def format_help(self, groups: Sequence[str] | None = None, only: Collection[str] | None = None) -> str:
        """The help text. `groups` chooses headings and their order, `only` the fields; None means all."""
        formatter = self._get_formatter()
        formatter.add_text(f"usage: {self.prog} [--config FILE] [--option value ...]")
        formatter.add_text(self.description)
        sections = {str(group.title): group for group in self._action_groups}
        for title in sections if groups is None else groups:
            if title not in sections:
                raise ValueError(f"no group {title!r} among {list(sections)}")
            actions = [a for a in sections[title]._group_actions if only is None or a.dest in only]
            if actions:
                formatter.start_section(title)
                formatter.add_arguments(actions)
                formatter.end_section()
        formatter.add_text(
            "--some_flag and --some-flag are the same. A true/false option is switched on by --flag alone "
            "and off by --no_flag. 'none' empties an option that may be empty."
        )
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def print_help(
        self, file: Any = None, groups: Sequence[str] | None = None, only: Collection[str] | None = None
    ) -> None:
        self._print_message(self.format_help(groups, only), file or sys.stdout)

    dump_yaml = staticmethod(dump_yaml)

    def error(self, message: str) -> Any:
        raise ConfigError(message)

    def _parse_dataclass_field(  # type: ignore[override]  # a static method there, but called on the instance
        self, parser: Any, field: dataclasses.Field[Any]
    ) -> None:
        """Called by HfArgumentParser for each field, its type hint resolved."""
        if field.name in self.options:
            raise ValueError(f"two option dataclasses have a field {field.name!r}")
        option = self.options[field.name] = Option.of(field)
        own = field.metadata.get("aliases", ())
        for spelling in [own] if isinstance(own, str) else own:
            self.aliases.setdefault(_plain(spelling), field.name)
        title = field.metadata.get("group")
        if title is not None:
            if title not in self._titles:
                self._titles[title] = self.add_argument_group(title)
            parser = self._titles[title]
        shown = [a for a, target in self.aliases.items() if target == field.name or _fixes(target, field.name)]
        parser.add_argument(
            f"--{field.name}",
            nargs="+" if option.many else None if option.bare is MISSING else "?",
            metavar=option.metavar(),
            default=argparse.SUPPRESS,
            help=option.help_text(shown),
        )

    def _inputs(self, dtype: Any, given: dict[str, _Setting]) -> dict[str, Any]:
        names = [field.name for field in dataclasses.fields(dtype) if field.init]
        inputs = {name: given[name].value for name in names if name in given}
        for name in names:  # a bool without a default is off, as in HfArgumentParser
            if name not in inputs and self.options[name].default is MISSING:
                inputs[name] = False
        return inputs

    def _split(self, argv: list[str]) -> tuple[str | None, list[tuple[str, list[str]]]]:
        """The path after --config, and each other flag as it was spelt, with the words that belong to it."""
        if "-h" in argv or "--help" in argv:
            self.print_help()
            self.exit()
        flags: list[tuple[str, list[str]]] = []
        for word in argv:
            match = _FLAG.fullmatch(word)
            if match:
                flags.append((f"--{match[1]}", [] if match[2] is None else [match[2]]))
            elif flags:
                flags[-1][1].append(word)
            else:
                raise ConfigError(f"unexpected argument {word!r}: options are written --name value{self._hint(word)}")
        configs = [words for spelling, words in flags if spelling == "--config"]
        if len(configs) > 1 or any(len(words) != 1 for words in configs):
            raise ConfigError("--config takes the path of one YAML file, and is given once")
        return (configs[0][0] if configs else None), [flag for flag in flags if flag[0] != "--config"]

    def _from_flag(self, spelling: str, words: list[str]) -> Iterator[_Setting]:
        name = _plain(spelling)
        target = self.aliases.get(name, name)
        option = self.options.get(target) if isinstance(target, str) else None
        if option is None and target == name:
            inner = self.aliases.get(name[3:], name[3:]) if name.startswith("no_") else None
            off = self.options.get(inner) if isinstance(inner, str) else None
            if off is None or not off.boolean:
                raise ConfigError(f"unknown flag {spelling}{self._hint(name)}")
            if words:
                raise ConfigError(f"{spelling} takes no value, got {words[0]!r}")
            yield _Setting(off.name, False, spelling, alias=inner != name[3:])
            return
        if len(words) > 1 and not (option and option.many):
            hint = self._hint(words[1]) if words[1].startswith("-") else "; quote a value that has spaces in it"
            before = spelling if option and option.secret else f"{spelling} {words[0]}"
            raise ConfigError(f"unexpected argument {words[1]!r} after '{before}'{hint}")
        given = words if len(words) > 1 else words[0] if words else _BARE
        yield from self._settings(name, given, spelling)

    def _from_yaml(self, path: str, entry: Entry) -> Iterator[_Setting]:
        where = f"{path}:{entry.line}: "
        if entry.key not in self.options and entry.key not in self.aliases:
            close = nearest(entry.key, [*self.options, *self.aliases])
            raise ConfigError(f"{where}unknown key {entry.key!r}; did you mean {close!r}?")
        yield from self._settings(entry.key, entry.given, where + entry.key)

    def _settings(self, name: str, given: Any, spelling: str) -> Iterator[_Setting]:
        """The fields that a flag or a YAML key sets."""
        target = self.aliases.get(name, name)
        try:
            if isinstance(target, tuple):
                if given is _BARE or convert(bool, given):
                    yield _Setting(target[0], self.options[target[0]].read(target[1]), spelling, alias=True)
            elif isinstance(target, str):
                option = self.options[target]
                value = option.bare if given is _BARE else option.read(given)
                if value is MISSING:
                    raise BadValue(f"expected {option.expects}, got no value")
                yield _Setting(target, value, spelling, alias=target != name)
            elif isinstance(given, str):
                for field, value in target(given).items():
                    value = self.options[field].read(value) if isinstance(value, str) else value
                    yield _Setting(field, value, spelling, alias=True)
            elif name in self.options and given is not _BARE:
                yield _Setting(name, self.options[name].read(given), spelling, alias=False)
            else:
                raise BadValue("expected one value")
        except (ConfigError, ValueError) as error:
            raise ConfigError(f"{spelling}: {error}") from None

    def _hint(self, word: str, others: Collection[str] = ()) -> str:
        name = _plain(word)
        off = [f"no_{option.name}" for option in self.options.values() if option.boolean]
        known = [
            *self.options,
            *self.aliases,
            *sorted(others),
            "config",
            "help",
            *(off if name.startswith("no_") else ()),
        ]
        return f"; did you mean --{nearest(name, known)}?"


def _merge(settings: Iterable[_Setting]) -> dict[str, _Setting]:
    """The last setting of each field; two spellings, one of them an alias, must not disagree."""
    merged: dict[str, _Setting] = {}
    for new in settings:
        old = merged.get(new.field)
        if old and old.spelling != new.spelling and (old.alias or new.alias) and old.value != new.value:
            raise ConfigError(
                f"{old.spelling} sets {new.field} to {old.value!r}, but {new.spelling} sets it to "
                f"{new.value!r}; keep one of them"
            )
        merged[new.field] = new
    return merged


def _plain(spelling: str) -> str:
    return spelling.lstrip("-").replace("-", "_")


def _fixes(target: Alias, field: str) -> bool:
    return isinstance(target, tuple) and target[0] == field
