"""A strict parser of command lines and YAML files into option dataclasses.

argparse only lays out the help: its parser accepts abbreviations, exits the process, and cannot read YAML.
`stepjepa.config.values` decides what a value means. Importing this module loads neither torch nor transformers.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Union

from stepjepa.config.option import MISSING, Brings, Option, Values, options_of, public_values
from stepjepa.config.values import BadValue, convert, did_you_mean, named_by_file, show
from stepjepa.config.yaml_file import Node, read_tree, representable
from stepjepa.errors import ConfigError

_FLAG = re.compile(r"--([A-Za-z][\w-]*)(?:=(.*))?", re.DOTALL)
# The value of a flag that was written without one.
_BARE = object()
# Words that a true/false flag takes as its value, if only to refuse them; any other word after it is positional, as in
# `--streaming data.jsonl`.
_SWITCH_WORDS = {"true", "false", "yes", "no", "on", "off", "1", "0", "none"}
_HELP, _CONFIG = "show this help message and exit", "a YAML file of options; flags override it"
_HELP_ALL, _UNTITLED = "show all options and exit", "further options"
_FOOTER = (
    "--some_flag and --some-flag are the same. A true/false option is switched on by --flag and off by --no_flag. "
    "'none' unsets an option that may be empty. With --quiet, only errors and the result are printed."
)


@dataclasses.dataclass(frozen=True)
class Answer:
    """The error for a name that is not an option here.

    Attributes:
        option: only commands with this option give the answer; all commands do if it is empty.
        text: what to do instead; ``{option}`` in it stands for the option's name.
        idle: values, in lower case, that are accepted and ignored, because a settings file may hold every default of
            another version.
    """

    option: str
    text: str
    idle: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text.format(option=self.option)


class Share(str):
    """The name of an option that takes a number of steps or a share of them, for an alias that takes only a share."""


# A flag as it is spelled, and the words after it.
Flag = tuple[str, list[str]]
# What an alias stands for, see `StrictParser`.
Alias = Union[str, "tuple[str, str]", "Mapping[str, tuple[tuple[str, str], ...]]", Answer]


def alias_settings(target: Alias) -> list[tuple[str, str | None]]:
    """The fields that an alias sets, each with its value; None if the user writes the value."""
    if isinstance(target, str):
        return [(target, None)]
    if isinstance(target, Answer):
        return [(target.option, None)]
    if isinstance(target, Mapping):
        return [setting for settings in target.values() for setting in settings]
    return [target]


class Setting(NamedTuple):
    """A value for a field.

    Attributes:
        spelling: as the user wrote it: "--lbd", or "run.yaml:3: lbd".
        alias: whether the spelling differs from the field's name.
    """

    field: str
    value: Any
    spelling: str
    alias: bool


class HelpShown(SystemExit):
    """Ends a command with status 0 after `parser` has printed its help."""

    def __init__(self, parser: StrictParser):
        super().__init__(0)
        self.parser = parser


class StrictParser:
    """Parses flags and `--config run.yaml`, flags overriding it, into instances of dataclasses.

    Args:
        dataclass_types: dataclasses without common field names. See `stepjepa.config.option`.
        text: the docstring of a command, in paragraphs: its usage, what it does, an example.
        aliases: other spellings, without leading dashes, for flags and YAML keys. An alias maps to

            - a field's name: `{"batch_size": "per_device_train_batch_size"}`, or a `Share` of it;
            - a field and its value: `{"regular": ("objective", "regular")}`. `--regular` and `--regular true` set it,
              `--regular false` and `regular: false` set nothing;
            - a table from words to the fields and values that they set; the flag without a word means "true". If there is a
              field of the same name, it takes all words that the table lacks: `{"debug": {"5": (("debug_level", "5"),)}}`;
            - an `Answer`, the error that it raises.
        positional: fields that positional words fill, in this order; fields that a flag sets are skipped. A field with
            several values takes all remaining words.
        first: headings of the short help, and the options under each; only ``--help_all`` shows the others. Names that are
            not options here are skipped. By default the help shows all options.
    """

    def __init__(
        self,
        dataclass_types: Iterable[type],
        text: str = "stepjepa\n\n\n\n",
        *,
        aliases: Mapping[str, Alias] | None = None,
        positional: Sequence[str] = (),
        first: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        # The first paragraph is the usage and the last one the example; line breaks within a paragraph have no meaning.
        paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
        self.prog = paragraphs[0]
        self.description = " ".join(paragraphs[1:-1])
        self.epilog = paragraphs[-1]
        self.positional, self.first = tuple(positional), dict(first or {})
        self.aliases: dict[str, Alias] = dict(aliases or {})
        self.options = options_of(*dataclass_types)
        self._brought: set[str] = set()
        for name, option in self.options.items():
            for spelling in option.aliases:
                self.aliases.setdefault(spelling, name)

    def values(self, argv: Sequence[str]) -> dict[str, Any]:
        """Parse the flags and the YAML file into values by field, from which `build` makes instances of the dataclasses.

        Raises:
            ConfigError: for any mistake in the flags or the file.
            SystemExit: with code 0, after printing the help for `--help` and `--help_all`.
        """
        asked = {"-h", "--help", "--help_all"} & set(argv)
        rest = [word for word in argv if word not in asked]
        if asked:
            # The help shows the options of the user's classes; mistakes must not hide it.
            with suppress(ConfigError):
                self._split(rest)
            sys.stdout.write(self.format_help(every="--help_all" in asked))
            raise HelpShown(self)
        nodes, flags = self._split(rest)
        self._check_names(flags, nodes)
        per_key = (
            self.settings(key, node.written, f"{node.where}: {key}") for key, node in nodes.items()
        )
        settings = merged(setting for settings_of_key in per_key for setting in settings_of_key)
        # File and flags are merged separately: a flag overrides the file, but two flags that disagree are an error.
        settings |= merged(setting for flag in flags for setting in self._from_flag(*flag))
        return carried(self.options, {name: setting.value for name, setting in settings.items()})

    def _check_names(self, flags: Iterable[Flag], nodes: Mapping[str, Node]) -> None:
        """Refuse flags and YAML keys that are not options; the values are not checked.

        Raises:
            ConfigError: the message names the flag or key.
        """
        known = self._names()
        for spelling, words in flags:
            name = _plain(spelling)
            answer = self.aliases.get(name)
            value = "".join(words).lower() or "true"
            if isinstance(answer, Answer) and value not in answer.idle:
                raise ConfigError(f"{spelling}: {answer}")
            if name not in known and not self._switched_off(name):
                hint = self._hint(name) or "; --help lists the options"
                raise ConfigError(f"unknown flag {spelling}{hint}")
        for key, node in nodes.items():
            # A file cannot name another file.
            if key in known and key != "config":
                continue
            raise ConfigError(f"{node.where}: unknown key {key!r}{did_you_mean(key, known)}")

    def take_up(self, name: str, value: object) -> None:
        """Add the options of a user's class, if option `name` accepts such classes and `value` names one.

        Raises:
            ConfigError: the class cannot be loaded, or one of its options has the name of an existing one.
        """
        brings = self.options[name].brings
        if brings is None or not named_by_file(value):
            return
        for option in _options_brought(brings, value).values():
            name_exists = option.name in self.options and option.name not in self._brought
            if name_exists:
                raise ConfigError(
                    f"{name} {value}: its option {option.name!r} has the name of an existing option; choose another"
                )
            self._brought.add(option.name)
            # The user's option takes precedence over the answer for an option of that name in another version.
            if isinstance(self.aliases.get(option.name), Answer):
                del self.aliases[option.name]
            self.options[option.name] = dataclasses.replace(
                option, group=option.group or f"{name} {value}"
            )

    def settings(self, name: str, written: object, spelling: str) -> Iterator[Setting]:
        """Read a flag or a YAML key into the fields that it sets.

        Args:
            name: a field or an alias.
            written: what the user wrote, in one of the forms that `stepjepa.config.values` describes.
            spelling: for messages.

        Raises:
            ConfigError: the value does not fit.
        """
        try:
            values = self._read(name, written)
        except (ConfigError, ValueError) as error:
            raise ConfigError(f"{spelling}: {error}") from None
        for field, value in values:
            yield Setting(field, value, spelling, alias=field != name)

    def _read(self, name: str, written: object) -> list[tuple[str, object]]:
        """The fields that a name sets, with their values; BadValue if the written value does not fit."""
        target = self.aliases.get(name, name)
        word = "true" if written is _BARE else "none" if written is None else written
        word = word.lower() if isinstance(word, str) else word
        # The four kinds of alias, as the class describes them; the last one is a field's name.
        if isinstance(target, Answer):
            if word in target.idle:
                return []
            raise BadValue(str(target))
        if isinstance(target, tuple):
            field, value = target
            switched_on = written is _BARE or convert(bool, written)
            return [(field, self.options[field].read(value))] if switched_on else []
        if isinstance(target, Mapping):
            if isinstance(word, str) and word in target:
                return [(field, self.options[field].read(value)) for field, value in target[word]]
            if name not in self.options or written is _BARE:
                got = "no value" if written is _BARE else show(written)
                raise BadValue(f"expected one of {', '.join(target)}, got {got}")
            target = name
        option = self.options[target]
        if written is _BARE and option.bare is MISSING:
            raise BadValue(f"expected {option.metavar()}, got no value")
        result: Any = option.bare if written is _BARE else option.read(written)
        # 0.1 is a share under either name, but warmup_ratio=5 would become five steps.
        if isinstance(target, Share) and result >= 1:
            raise BadValue(
                f"expected a share of the steps, below 1; for a number of steps, write --{target}"
            )
        return [(str(target), result)]

    # Help

    def groups(self) -> dict[str, list[Option]]:
        """The headings of the help, each with its options; options without a heading come last."""
        groups: dict[str, list[Option]] = {}
        for option in sorted(self.options.values(), key=lambda option: option.group is None):
            groups.setdefault(option.group or _UNTITLED, []).append(option)
        return groups

    def _first_groups(self) -> dict[str, list[Option]]:
        """The headings of the short help, each with its options: those of `first`, and those of a user's class."""
        remaining = dict(self.options)
        # An option is shown once, under the first heading that lists it.
        groups = {
            title: [remaining.pop(name) for name in names if name in remaining]
            for title, names in self.first.items()
        }
        for name in self._brought:
            groups.setdefault(str(remaining[name].group), []).append(remaining[name])
        return groups

    def spellings(self, name: str) -> list[str]:
        """The other spellings of a field, including those that set a value, except tables."""
        return [
            alias
            for alias, target in self.aliases.items()
            if isinstance(target, (str, tuple)) and alias_settings(target)[0][0] == name
        ]

    def format_help(self, every: bool = False) -> str:
        """The help text, with the options of `first` or, for `every`, with all options."""
        layout = argparse.ArgumentParser(
            # By default, the usage line would list every option.
            usage=f"{self.prog} [--config FILE] [--option value ...]",
            description=self.description,
            epilog=_FOOTER,
            add_help=False,
        )
        groups = self.groups()
        layout.add_argument("-h", "--help", action="help", help=_HELP)
        if self.first and not every:
            groups = self._first_groups()
            layout.add_argument("--help_all", action="help", help=_HELP_ALL)
        layout.add_argument("--config", metavar="FILE", help=_CONFIG)
        for title, options in groups.items():
            section = layout.add_argument_group(title)
            for option in options:
                section.add_argument(
                    f"--{option.name}",
                    nargs="+" if option.many else None if option.bare is MISSING else "?",
                    metavar=option.metavar(),
                    help=option.help_text(self.spellings(option.name)),
                )
        # The example is a paragraph of its own.
        example = argparse.HelpFormatter(self.prog)
        example.add_text(self.epilog)
        return f"{layout.format_help()}\n{example.format_help()}"

    # Reading

    def _split(self, argv: Sequence[str]) -> tuple[Mapping[str, Node], list[Flag]]:
        """The content of the file after --config, and every other flag with its words; repeated list flags are joined.

        Adds the options of the user's classes that are named on the command line or else in its YAML file.
        """
        config, flags = self._assigned(argv)
        nodes = {} if config is None else read_tree(config).mapping("options")
        written = {_plain(spelling): words for spelling, words in flags}
        for name in [name for name, option in self.options.items() if option.brings]:
            if name in nodes and name not in written:
                self.take_up(name, nodes[name].written)
            for word in written.get(name, ()):
                self.take_up(name, word)
        # Again, because the options of these classes decide which words they take.
        _, flags = self._assigned(argv)
        return nodes, flags

    def _assigned(self, argv: Sequence[str]) -> tuple[str | None, list[Flag]]:
        """The path after --config, and the flags as in `_split`, with the options that are known so far."""
        matches = map(_FLAG.fullmatch, argv)
        written = {_plain(match[1]) for match in matches if match}
        free = {
            name: list[str]()
            for name in self.positional
            if not written & {name, *self.spellings(name)}
        }
        flags: list[Flag] = []
        # Each word belongs to the flag before it if that takes the word, or else to the next positional field.
        for word in argv:
            match = _FLAG.fullmatch(word)
            if match:
                flags.append((f"--{match[1]}", [] if match[2] is None else [match[2]]))
                continue
            open_names = [
                name for name, words in free.items() if self.options[name].many or not words
            ]
            # A single dash is standard input.
            is_free = bool(open_names) and (word == "-" or not word.startswith("-"))
            if is_free and not (flags and self._takes(*flags[-1], word)):
                free[open_names[0]].append(word)
            elif flags:
                flags[-1][1].append(word)
            else:
                raise ConfigError(
                    f"unexpected argument {word!r}: options are written --name value{self._hint(word)}"
                )
        flags += [(f"--{name}", words) for name, words in free.items() if words]
        configs = [words for spelling, words in flags if spelling == "--config"]
        if len(configs) > 1 or any(len(words) != 1 for words in configs):
            raise ConfigError(
                "--config takes the path of one YAML file, and may be given only once"
            )
        joined: list[Flag] = []
        # The flag of a list may be repeated: `--metric a --metric b` means `--metric a b`.
        lists: dict[str, list[str]] = {}
        for spelling, words in flags:
            _, option = self._meant(spelling)
            if option and option.many and option.name in lists:
                lists[option.name] += words
                continue
            if option:
                lists[option.name] = words
            if spelling != "--config":
                joined.append((spelling, words))
        return (configs[0][0] if configs else None), joined

    def _takes(self, spelling: str, words: Sequence[str], word: str) -> bool:
        """Whether `word` is a value of the flag before it, which already has `words`."""
        target, option = self._meant(spelling)
        if option and option.many:
            return not words or option.fits([word])
        if words:
            return False
        if isinstance(target, Mapping):
            return word.lower() in target
        if isinstance(target, Answer) or spelling == "--config" or (option and not option.boolean):
            return True
        return word.lower() in _SWITCH_WORDS

    def _meant(self, spelling: str) -> tuple[Alias, Option | None]:
        """What a flag stands for, and the option itself if it stands for an option's name."""
        target = self.aliases.get(_plain(spelling), _plain(spelling))
        return target, self.options.get(target) if isinstance(target, str) else None

    def _from_flag(self, spelling: str, words: list[str]) -> Iterator[Setting]:
        name = _plain(spelling)
        target, option = self._meant(name)
        # --no_NAME of a true/false option, unless --no_NAME is itself an option or an alias.
        off = self._switched_off(name) if target == name and option is None else None
        if off is not None:
            if words:
                raise ConfigError(f"{spelling} takes no value, got {words[0]!r}")
            yield Setting(off.name, False, spelling, alias=off.name != name[3:])
            return
        if len(words) > 1 and not (option and option.many):
            hint = (
                self._hint(words[1])
                if words[1].startswith("-")
                else "; quote a value that contains spaces"
            )
            # The words are not shown, because one of them may be a secret, such as an access token.
            raise ConfigError(f"{spelling} takes one value, got {len(words)}{hint}")
        if len(words) > 1:
            yield from self.settings(name, words, spelling)
        else:
            yield from self.settings(name, words[0] if words else _BARE, spelling)

    def _names(self) -> set[str]:
        return {*self.options, *self.aliases, "config"}

    def _switched_off(self, name: str) -> Option | None:
        """The true/false option that ``--no_NAME`` switches off."""
        _, option = self._meant(name[3:]) if name.startswith("no_") else (name, None)
        return option if option and option.boolean else None

    def _hint(self, word: str) -> str:
        """Suggest the flag that was probably meant; empty if no name is close."""
        name = _plain(word)
        # A value may be written as a flag, as in `--semantic_tube` for `--objective semantic_tube`.
        for option in self.options.values():
            if name in option.choices:
                return f"; did you mean --{option.name} {name}?"
        known = [*self._names(), "help", "help_all", "quiet"]
        # Without these, a misspelt --no_NAME would suggest --NAME, which means the opposite.
        if name.startswith("no_"):
            known += [f"no_{option.name}" for option in self.options.values() if option.boolean]
        return did_you_mean(name, known, "--{}")


def build(dataclass_types: Sequence[Any], values: Values) -> tuple[Any, ...]:
    """Make instances of dataclasses from values by name.

    Raises:
        ConfigError: a name that is not a field of any dataclass, or values that a dataclass refuses.
    """
    known = options_of(*dataclass_types)
    values = carried(known, values)
    for name in values:
        if name not in known:
            raise ConfigError(f"unknown option {name!r}{did_you_mean(name, known)}")
    try:
        return tuple(dtype(**known_values(values, dtype)) for dtype in dataclass_types)
    # `TrainingArguments` checks its values at the end of its constructor.
    except (ValueError, OSError) as error:
        raise ConfigError(str(error)) from error


def carried(known: Mapping[str, Option], values: Values) -> dict[str, Any]:
    """`values` with the options of a user's class moved under the option that stores them (`option(brings=...)`).

    Raises:
        ConfigError: the class cannot be loaded.
    """
    moved = dict(values)
    for option in known.values():
        value = moved.get(option.name)
        if option.brings is None or not named_by_file(value):
            continue
        of_class = {
            name: moved.pop(name)
            for name in _options_brought(option.brings, value)
            if name in values
        }
        if of_class:
            carrier = option.brings[0]
            moved[carrier] = {**(moved.get(carrier) or {}), **of_class}
    return moved


def known_values(values: Values, *dataclass_types: type) -> dict[str, Any]:
    """The values without the names that no dataclass has, such as options of another objective."""
    known = options_of(*dataclass_types)
    return {name: value for name, value in values.items() if name in known}


def _options_brought(brings: Brings, value: str) -> dict[str, Option]:
    """The options of the class that `value` names."""
    dataclass = brings[1](value)
    return {} if dataclass is None else options_of(dataclass)


def command_line(command: str, given: Values, *instances: object) -> str:
    """The command that sets the options in `given` to their values in `instances` of their dataclasses; a secret is shown as
    three asterisks."""
    known: dict[str, Option] = {}
    public: dict[str, Any] = {}
    for instance in instances:
        known |= options_of(type(instance))
        public |= public_values(instance)
    words = ["stepjepa", command]
    for name in carried(known, given):
        value = representable(public.get(name, "***"))
        items = value if isinstance(value, list) else [value]
        words += [
            f"--{name}",
            *(item if isinstance(item, str) else json.dumps(item) for item in items),
        ]
    return shlex.join(words)


def merged(settings: Iterable[Setting]) -> dict[str, Setting]:
    """The last setting of each field.

    Raises:
        ConfigError: two spellings of a field disagree, at least one of which is an alias.
    """
    last: dict[str, Setting] = {}
    for new in settings:
        old = last.get(new.field)
        if (
            old
            and old.spelling != new.spelling
            and (old.alias or new.alias)
            and old.value != new.value
        ):
            raise ConfigError(
                f"{old.spelling} sets {new.field} to {old.value!r}, but {new.spelling} sets it to "
                f"{new.value!r}; keep one of them"
            )
        last[new.field] = new
    return last


def _plain(spelling: str) -> str:
    """The option's name for a flag: no dashes in front, underscores inside."""
    return spelling.lstrip("-").replace("-", "_")
