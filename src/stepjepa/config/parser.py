"""A strict parser of command lines and YAML files into option dataclasses.

argparse only lays out the help: its parser takes abbreviations, exits the process, and knows no YAML. What a value means is
decided in `stepjepa.config.values`. Importing this module loads neither torch nor transformers.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from stepjepa.config.aliases import Alias, Answer, Share, alias_settings
from stepjepa.config.option import MISSING, Brings, Option, options_of, public_values
from stepjepa.config.values import BadValue, convert, did_you_mean, named_by_file, show
from stepjepa.config.yaml_file import Node, read_tree, representable
from stepjepa.errors import ConfigError

_FLAG = re.compile(r"--([A-Za-z][\w-]*)(?:=(.*))?", re.DOTALL)
_BARE = object()  # the value of a flag that was written without one
_SWITCH_WORDS = {"true", "false", "yes", "no", "on", "off", "1", "0"}
_HELP, _CONFIG = "show this help message and exit", "a YAML file of options; flags win over it"
_FOOTER = (
    "--some_flag and --some-flag are the same. A true/false option is switched on by --flag alone and off by --no_flag. "
    "'none' empties an option that may be empty. --quiet prints errors and the result only."
)


class Setting(NamedTuple):
    """A value for a field.

    Attributes:
        spelling: as the user wrote it: "--lbd", or "run.yaml:3: lbd".
        alias: it is another spelling than the field's name.
    """

    field: str
    value: Any
    spelling: str
    alias: bool


class HelpShown(SystemExit):
    """Ends a command, status 0, that was asked for its help; `parser` has printed it."""

    def __init__(self, parser: StrictParser):
        super().__init__(0)
        self.parser = parser


class StrictParser:
    """Parses flags and `--config run.yaml`, flags winning, into instances of dataclasses.

    Args:
        dataclass_types: a dataclass or several; a field name may occur once among them. See `stepjepa.config.option`.
        text: of the help, in paragraphs: the command's usage, what it does, an example. The docstring of a command's module.
        aliases: other spellings, without leading dashes, for flags and YAML keys alike. One maps to

            - a field's name: `{"batch_size": "per_device_train_batch_size"}`;
            - a field and the value that the spelling alone gives it: `{"regular": ("objective", "regular")}`.
              `--regular true` is the same, `--regular false` and `regular: false` set nothing;
            - a table from the words that it takes to the fields and values that they set; the spelling alone is "true".
              Where there is a field of this name as well, all that the table lacks is for that one:
              `{"debug": {"5": (("debug_level", "5"),)}}`;
            - a `Share` of the steps that a field counts;
            - an `Answer`, which is the error that it raises.
        positional: fields that free words fill, in this order; those that a flag gives are passed over. One that takes
            several values takes all free words.
        headings: groups of options that the help shows, in this order; by default all.
        others: names that `check_names` lets pass: of options in dataclasses that are too slow to load only for names.
    """

    def __init__(
        self,
        dataclass_types: type | Iterable[type],
        text: str | None = None,
        *,
        aliases: Mapping[str, Alias] | None = None,
        positional: Sequence[str] = (),
        headings: Sequence[str] = (),
        others: Collection[str] = (),
    ) -> None:
        self.dataclass_types = tuple(dataclass_types) if isinstance(dataclass_types, Iterable) else (dataclass_types,)
        paragraphs = [" ".join(part.split()) for part in (text or "stepjepa\n\n\n\n").split("\n\n")]
        self.prog, self.description, self.epilog = paragraphs[0], " ".join(paragraphs[1:-1]), paragraphs[-1]
        self.positional, self.headings = tuple(positional), tuple(headings)
        self._others = set(others)
        self.options: dict[str, Option] = {}
        self._brought: set[str] = set()
        self.aliases: dict[str, Alias] = {_plain(name): target for name, target in (aliases or {}).items()}
        for name, option in ((name, one) for dtype in self.dataclass_types for name, one in options_of(dtype).items()):
            if name in self.options:
                raise ValueError(f"two option dataclasses have a field {name!r}")
            self.options[name] = option
            for spelling in option.aliases:
                self.aliases.setdefault(_plain(spelling), name)

    def values(self, argv: Sequence[str]) -> dict[str, Any]:
        """The values of the fields that a flag or the YAML file sets; `build` makes dataclasses of them.

        Raises:
            ConfigError: for everything that the user can mend.
            SystemExit: with code 0, after printing the help for `--help`.
        """
        argv = list(argv)
        self._take_up_written(argv)
        self._check_answers(argv)
        config, flags = self._split(argv)
        written = {} if config is None else read_tree(config).mapping("options")
        given = merged(setting for one in written.items() for setting in self._from_yaml(*one))
        given |= merged(setting for flag in flags for setting in self._from_flag(*flag))
        return carried(self.options, {name: setting.value for name, setting in given.items()})

    def check_names(self, argv: Sequence[str]) -> None:
        """Refuse a flag, or a key of the YAML file, that is no option, without a look at the values.

        Raises:
            ConfigError: there is one.
        """
        self._take_up_written(argv)
        self._check_answers(argv)
        self._check_flags(argv)
        config = _words_by_flag(argv).get("config")
        if config:
            for key, node in read_tree(config).mapping("options").items():
                self._check_key(key, node)

    def _take_up_written(self, argv: Sequence[str]) -> None:
        for option in [one for one in self.options.values() if one.brings]:
            self.take_up(option.name, _written(argv, option.name))

    def take_up(self, name: str, value: object) -> None:
        """Add the options that a value of option `name` brings, where it is the name of a class of one's own.

        Raises:
            ConfigError: it cannot be loaded, or one of its options has the name of another.
        """
        brings = self.options[name].brings
        if brings is None or not named_by_file(value):
            return
        for one in _brought(brings, value).values():
            if one.name in self.options and one.name not in self._brought:
                raise ConfigError(f"{name} {value}: its option {one.name!r} is an option already; choose another name")
            self._brought.add(one.name)
            if isinstance(self.aliases.get(one.name), Answer):
                del self.aliases[one.name]
            self.options[one.name] = dataclasses.replace(one, group=one.group or f"{name} {value}")

    def settings(self, name: str, given: object, spelling: str) -> Iterator[Setting]:
        """The fields that a flag or a YAML key sets.

        Args:
            name: a field or an alias.
            given: what was written, in one of the forms that `stepjepa.config.values` describes.
            spelling: for messages.

        Raises:
            ConfigError: the value does not fit.
        """
        target = self.aliases.get(name, name)
        word = "true" if given is _BARE else "none" if given is None else given
        word = word.lower() if isinstance(word, str) else word
        try:
            if isinstance(target, Answer) and word in target.idle:
                return
            if isinstance(target, Answer):
                raise BadValue(str(target))
            if isinstance(target, Share):
                target = target.option
                share = self.options[target].read(None if given is _BARE else given)
                if not isinstance(share, (int, float)) or share >= 1:
                    raise BadValue(f"it is a share of the steps, below 1; for a number of steps write --{target}")
            if isinstance(target, tuple):
                yes = given is _BARE or convert(bool, given)
                values = [(target[0], self.options[target[0]].read(target[1]))] if yes else []
            elif isinstance(target, str):
                option = self.options[target]
                values = [(target, option.bare if given is _BARE else option.read(given))]
                if values[0][1] is MISSING:
                    raise BadValue(f"expected {option.expects}, got no value")
            elif isinstance(word, str) and word in target:
                values = [(field, self.options[field].read(value)) for field, value in target[word]]
            elif name in self.options and given is not _BARE:
                values = [(name, self.options[name].read(given))]
            else:
                got = "no value" if given is _BARE else show(given)
                raise BadValue(f"expected one of {', '.join(target)}, got {got}")
        except (ConfigError, ValueError) as error:
            raise ConfigError(f"{spelling}: {error}") from None
        for field, value in values:
            try:
                if self.options[field].bounds and isinstance(value, (int, float)):
                    self.options[field].check(value)
            except ConfigError as error:  # which begins with the option's name
                raise ConfigError(f"{spelling.removesuffix(spelling.split()[-1].lstrip('-'))}{error}") from None
            yield Setting(field, value, spelling, alias=field != name)

    # Help

    def groups(self) -> dict[str, list[Option]]:
        """The headings of the help, each with its options; "options" holds those without a heading."""
        found: dict[str, list[Option]] = {"options": []}
        for option in self.options.values():
            found.setdefault(option.group or "options", []).append(option)
        return found

    def spellings(self, name: str) -> list[str]:
        """The other spellings of a field, those that give it a value included; but for tables."""
        plain = {alias: target for alias, target in self.aliases.items() if isinstance(target, (str, tuple))}
        return [alias for alias, target in plain.items() if alias_settings(target)[0][0] == name]

    def format_help(self) -> str:
        """The help text."""
        layout = argparse.ArgumentParser(prog=self.prog, add_help=False)
        formatter = argparse.HelpFormatter(self.prog)
        formatter.add_text(f"usage: {self.prog} [--config FILE] [--option value ...]")
        formatter.add_text(self.description)
        known = self.groups()
        brought = [title for title in known if self._brought & {option.name for option in known[title]}]
        for title in dict.fromkeys([*self.headings, *brought]) if self.headings else known:
            section = layout.add_argument_group(title)
            actions = []
            if title == "options":
                actions.append(section.add_argument("-h", "--help", action="help", help=_HELP))
                actions.append(section.add_argument("--config", metavar="FILE", help=_CONFIG))
            for option in known[title]:
                action = section.add_argument(
                    f"--{option.name}",
                    nargs="+" if option.many else None if option.bare is MISSING else "?",
                    metavar=option.metavar(),
                    help=option.help_text(self.spellings(option.name)),
                )
                actions.append(action)
            formatter.start_section(title)
            formatter.add_arguments(actions)
            formatter.end_section()
        formatter.add_text(_FOOTER)
        formatter.add_text(self.epilog)
        return formatter.format_help()

    # Reading

    def _split(self, argv: list[str]) -> tuple[str | None, list[tuple[str, list[str]]]]:
        """The path after --config, and each other flag as it was spelt and the words that belong to it, of a list's all."""
        if "-h" in argv or "--help" in argv:
            sys.stdout.write(self.format_help())
            raise HelpShown(self)
        written = {_plain(word.partition("=")[0]) for word in argv if word.startswith("--")}
        free = {name: list[str]() for name in self.positional if not written & {name, *self.spellings(name)}}
        flags: list[tuple[str, list[str]]] = []
        self._check_flags(argv)
        for word in argv:
            before, words = flags[-1] if flags else ("", [])
            open_names = [name for name, taken in free.items() if self.options[name].many or not taken]
            if match := _FLAG.fullmatch(word):
                flags.append((f"--{match[1]}", [] if match[2] is None else [match[2]]))
            elif open_names and (word[:1] != "-" or len(word) == 1) and not self._takes(before, words, word):
                free[open_names[0]].append(word)
            elif flags:
                words.append(word)
            else:
                raise ConfigError(f"unexpected argument {word!r}: options are written --name value{self._hint(word)}")
        flags += [(f"--{name}", words) for name, words in free.items() if words]
        configs = [words for spelling, words in flags if spelling == "--config"]
        if len(configs) > 1 or any(len(words) != 1 for words in configs):
            raise ConfigError("--config takes the path of one YAML file, and is given once")
        joined: list[tuple[str, list[str]]] = []
        lists: dict[str, list[str]] = {}  # a flag that takes several words may be given in turns
        for spelling, words in flags:
            _, option = self._meant(spelling)
            if option and option.many and option.name in lists:
                lists[option.name] += words
            elif spelling != "--config":
                joined.append((spelling, words))
                lists |= {option.name: words} if option else {}
        return (configs[0][0] if configs else None), joined

    def _takes(self, spelling: str, words: Sequence[str], word: str) -> bool:
        """Whether `word` is a value of the flag before it, which has taken `words`."""
        target, option = self._meant(spelling)
        if isinstance(target, Mapping):
            return not words and word.lower() in target
        if isinstance(target, Answer):
            return not words
        if option is None and spelling != "--config":  # it stands for a value, or for false
            return not words and target in self.aliases.values() and word.lower() in _SWITCH_WORDS
        if option is not None and option.boolean:
            return not words and word.lower() in _SWITCH_WORDS
        return not words or (option is not None and option.many and option.fits([word]))

    def _meant(self, spelling: str) -> tuple[Alias, Option | None]:
        """What a flag stands for, and the option if it is one."""
        target = self.aliases.get(_plain(spelling), _plain(spelling))
        name = target.option if isinstance(target, Share) else target
        return target, self.options.get(name) if isinstance(name, str) else None

    def _check_flags(self, argv: Iterable[str]) -> None:
        """Refuse flags that nobody knows."""
        before = ""  # a flag that waits for a value
        for word in argv:
            match = _FLAG.fullmatch(word)
            if match is None:
                before = ""
                continue
            self._check_flag(f"--{match[1]}", before)
            before = f"--{match[1]}" if match[2] is None else ""

    def _check_answers(self, argv: Sequence[str]) -> None:
        """Refuse a flag that has an `Answer`, before any other flag of the same command is called unknown."""
        for name, word in _words_by_flag(argv).items():
            answer = self.aliases.get(name)
            value = word.lower() if word and not word.startswith("--") else "true"
            if isinstance(answer, Answer) and value not in answer.idle:
                raise ConfigError(f"--{name}: {answer}")

    def _check_flag(self, spelling: str, before: str) -> None:
        name = _plain(spelling)
        if name in self._names() or self._switched_off(name) or name.removeprefix("no_") in self._others:
            return
        waiting = self.options.get(_plain(before))
        way = f"; for a value, write {before}={spelling}" if waiting and not waiting.boolean else ""
        hint = self._hint(name) or "; --help lists the options"
        raise ConfigError(f"unknown flag {spelling}{hint}{way}")

    def _names(self) -> set[str]:
        return {*self.options, *self.aliases, *self._others, "config"}

    def _switched_off(self, name: str) -> Option | None:
        """The true/false option that ``--no_NAME`` switches off."""
        _, option = self._meant(name[3:]) if name.startswith("no_") else (name, None)
        return option if option and option.boolean else None

    def _from_flag(self, spelling: str, words: list[str]) -> Iterator[Setting]:
        name = _plain(spelling)
        target, option = self._meant(name)
        if option is None and target == name and (off := self._switched_off(name)):
            if words:
                raise ConfigError(f"{spelling} takes no value, got {words[0]!r}")
            yield Setting(off.name, False, spelling, alias=off.name != name[3:])
            return
        if len(words) > 1 and not (option and option.many):
            hint = self._hint(words[1]) if words[1].startswith("-") else "; quote a value that has spaces in it"
            start = spelling if option and option.secret else f"{spelling} {words[0]}"
            raise ConfigError(f"unexpected argument {words[1]!r} after '{start}'{hint}")
        given = words if len(words) > 1 else words[0] if words else _BARE
        yield from self.settings(name, given, spelling)

    def _from_yaml(self, key: str, node: Node) -> Iterator[Setting]:
        self._check_key(key, node)
        yield from self.settings(key, node.written, f"{node.where}: {key}")

    def _check_key(self, key: str, node: Node) -> None:
        """Refuse a key of a YAML file that nobody knows."""
        if key in self._names() - {"config"}:
            return
        off = self._switched_off(key)
        hint = f"; write {off.name}: false" if off else did_you_mean(key, self._names())
        raise ConfigError(f"{node.where}: unknown key {key!r}{hint}")

    def _hint(self, word: str) -> str:
        """The flag that was probably meant; empty where no name is a slip away."""
        name = _plain(word)
        for option in self.options.values():
            if name in option.choices:
                return f"; did you mean --{option.name} {name}?"
        off = [f"no_{option.name}" for option in self.options.values() if option.boolean and name.startswith("no_")]
        return did_you_mean(name, [*self._names(), "help", "quiet", *off], "--{}")


def build(dataclass_types: Sequence[Any], values: Mapping[str, Any]) -> tuple[Any, ...]:
    """Instances of dataclasses out of values by name.

    Raises:
        ConfigError: a name that none of them has, or values that their own checks refuse.
    """
    known = {name: one for dtype in dataclass_types for name, one in options_of(dtype).items()}
    values = carried(known, values)
    for name in values:
        if name not in known:
            raise ConfigError(f"unknown option {name!r}{did_you_mean(name, known)}")
    try:
        return tuple(
            dtype(**{name: one for name, one in values.items() if name in options_of(dtype)})
            for dtype in dataclass_types
        )
    except (ValueError, OSError) as error:
        raise ConfigError(str(error)) from error


def carried(known: Mapping[str, Option], values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with those that others of them bring under the option that carries them (`option(brings=...)`).

    Raises:
        ConfigError: what brings them cannot be loaded.
    """
    found = dict(values)
    for one in known.values():
        if one.brings and named_by_file(found.get(one.name)):
            own = {name: found.pop(name) for name in _brought(one.brings, found[one.name]) if name in values}
            if own:
                found[one.brings[0]] = {**(found.get(one.brings[0]) or {}), **own}
    return found


def _brought(brings: Brings, value: str) -> dict[str, Option]:
    dataclass = brings[1](value)
    return {} if dataclass is None else options_of(dataclass)


def command_line(command: str, given: Mapping[str, Any], *instances: object) -> str:
    """The command that sets the options `given` by name to the values that they have in instances of their dataclasses;
    of secrets, three stars."""
    known = {name: one for instance in instances for name, one in options_of(type(instance)).items()}
    public = {name: value for instance in instances for name, value in public_values(instance).items()}
    words = ["stepjepa", command]
    for name in carried(known, given):
        value = representable(public.get(name, "***"))
        many = value if isinstance(value, list) else [value]
        words += [f"--{name}", *(one if isinstance(one, str) else json.dumps(one) for one in many)]
    return shlex.join(words)


def _written(argv: Sequence[str], name: str) -> Any:
    """The value of an option as the command line has it, else its YAML file; None where neither does."""
    found = _words_by_flag(argv)
    if name in found or "config" not in found:
        return found.get(name)
    node = read_tree(found["config"]).mapping("options").get(name)
    return node and node.written


def _words_by_flag(argv: Sequence[str]) -> dict[str, str]:
    """The word that follows each flag, by the flag's name."""
    words: dict[str, str] = {}
    for word, after in zip(argv, [*argv[1:], ""], strict=False):
        flag, equals, value = word.partition("=")
        if flag.startswith("--"):
            words[_plain(flag)] = value if equals else after
    return words


def merged(settings: Iterable[Setting]) -> dict[str, Setting]:
    """The last setting of each field.

    Raises:
        ConfigError: two spellings of a field, one of them an alias, disagree.
    """
    merged: dict[str, Setting] = {}
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
