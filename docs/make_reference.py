"""The reference pages, written whenever the site is built: mkdocs calls `on_config` and `on_files` (`hooks` in mkdocs.yml).

Commands come from the parsers that parse them and print `--help`, the API from the docstrings (mkdocstrings reads the source
and imports nothing), and the page of a method from its objective's docstring, its options and docs/objectives.md. No page is
in the repository, so none can go stale.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import re
import sys
from functools import cache
from importlib.metadata import metadata
from pathlib import Path
from textwrap import dedent
from typing import Any

from stepjepa.cli.main import COMMANDS, run
from stepjepa.config.option import MISSING, Option
from stepjepa.config.parser import HelpShown, StrictParser
from stepjepa.objectives.base import find_objective, options_with_defaults

DOCS = Path(__file__).resolve().parent
SOURCE = DOCS.parent / "src" / "stepjepa"
# Pages of the API: one a package, these first and in the order in which data moves. The commands have pages of their own.
FIRST = ("data", "forest", "losses", "modeling", "training", "evaluation", "analysis", "inspect", "study")
NOT_API = ("cli", "recipes")
TOP = (
    "stepjepa.api",
    "stepjepa.parts",
    "stepjepa.training.config",
    "stepjepa.training.trainer",
    "stepjepa.inspect.view",
    "stepjepa.inspect.check",
    "stepjepa.errors",
)


def on_config(config: Any) -> Any:
    """Put the pages into the navigation, under Methods and Reference, and the package's links on every page."""
    links = dict(link.split(", ", 1) for link in metadata("stepjepa").get_all("Project-URL") or ())
    config.repo_url = links.get("Repository")
    icons = {"Repository": "material/source-repository", "Package": "material/package-variant"}
    config.extra["social"] = [
        {"icon": icons.get(name, "material/file-document-outline"), "link": link, "name": name}
        for name, link in links.items()
    ]
    (methods,) = (item["Methods"] for item in config.nav if "Methods" in item)
    methods[1:1] = [{"Each objective": [{_title(path): path} for path in method_pages()]}]
    (reference,) = (item["Reference"] for item in config.nav if "Reference" in item)
    reference += [
        {"Python": [{_title(path): path} for path in api_pages()]},
        {"Commands": [{_title(path): path} for path in command_pages()]},
    ]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages to the site's files."""
    from mkdocs.structure.files import File

    for path, text in {**method_pages(), **api_pages(), **command_pages()}.items():
        files.append(File.generated(config, path, content=text))
    return files


def public_modules(package: str) -> list[str]:
    """Dotted names of a package's modules, those with a leading underscore left out, in alphabetical order.

    A package is a module itself where its ``__init__`` defines something.
    """
    files = (file for file in (SOURCE / package).rglob("*.py") if not file.name.startswith("__") or _defines(file))
    parts = [file.relative_to(SOURCE).with_suffix("").parts for file in files]
    parts = [part[:-1] if part[-1] == "__init__" else part for part in parts]
    return sorted(".".join(("stepjepa", *part)) for part in parts if not any(name.startswith("_") for name in part))


def _defines(file: Path) -> bool:
    return any(line.startswith(("def ", "class ")) for line in file.read_text(encoding="utf-8").splitlines())


def api_pages() -> dict[str, str]:
    """Path -> Markdown of every page of the API, for mkdocstrings."""
    packages = [*FIRST, *sorted({init.parent.name for init in SOURCE.glob("*/__init__.py")} - {*FIRST, *NOT_API})]
    modules = {package: [name for name in public_modules(package) if name not in TOP] for package in packages}
    modules = {"stepjepa": list(TOP), **modules}
    pages = {}
    for package, names in modules.items():
        title = package if package == "stepjepa" else f"stepjepa.{package}"
        lead = "" if package == "stepjepa" else importlib.import_module(title).__doc__ or ""
        blocks = "\n\n".join(f"::: {name}" for name in names)
        pages[f"reference/{package}.md"] = f"# {title}\n\n{lead.strip()}\n\n{blocks}\n"
    return pages


def method_pages() -> dict[str, str]:
    """Path -> Markdown of one page for every objective, in the order of docs/objectives.md."""
    sections = re.split(r"^## ", (DOCS / "objectives.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    pages = {}
    for section in sections:
        heading, _, text = section.partition("\n")
        name = re.search(r"\(`(\w+)`\)$", heading)
        if name is not None:
            pages[f"methods/{name[1]}.md"] = method_page(heading, name[1], text)
    return pages


def method_page(heading: str, name: str, section: str) -> str:
    """The docstring with the formula, then source, siblings, evidence and example from the section, then the options."""
    objective = find_objective(name)
    docstring = inspect.getdoc(sys.modules[objective.__module__]) or ""
    # A fence that the docstring indents would be read as indented code.
    fence = re.compile(r"^    ```\n.*?^    ```$", flags=re.DOTALL | re.MULTILINE)
    docstring = fence.sub(lambda match: dedent(match[0]), docstring)
    # The section draws what the docstring may have drawn already.
    start = r"^\*\*Source\.|^```bash" if "```" in docstring else r"^```|^\*\*Source\."
    begin = re.search(start, section, flags=re.MULTILINE)
    if begin is None:
        raise ValueError(f"docs/objectives.md has no source and no example of {name}")
    text = section[begin.start() :]
    # The page is one folder deeper than docs/objectives.md.
    text = re.sub(r"\]\(#", "](objectives.md#", text)
    text = re.sub(r"\]\((?!https?:)", "](../", text)
    return "\n".join([f"# {heading}", "", docstring, "", text.strip(), "", *_method_options(objective)])


def _method_options(objective: Any) -> list[str]:
    """The options that only this objective has, as a table, and where the shared ones are."""
    parser = parsers()["train"]
    lines = ["## Options", ""]
    if rows := [_row(parser.options[name], parser) for name in options_with_defaults(objective)]:
        lines += ["| option | values | default | meaning |", "|---|---|---|---|", *rows, ""]
    shared = (
        "The page of [`stepjepa train`](../reference/commands/train.md#method) has the options that objectives share."
    )
    return [*lines, shared, ""]


@cache
def parsers() -> dict[str, StrictParser]:
    """Every command's parser: the one that prints `stepjepa COMMAND --help`."""
    found: dict[str, StrictParser] = {}
    for command in COMMANDS:
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                run(command, ["--help"])
            except HelpShown as shown:
                found[command] = shown.parser
    return found


def command_pages() -> dict[str, str]:
    """Path -> Markdown of one page for every command."""
    return {f"reference/commands/{name}.md": command_page(name, parser) for name, parser in parsers().items()}


def command_page(command: str, parser: StrictParser) -> str:
    """A command's description, example and options in their groups."""
    lines = [f"# stepjepa {command}", "", _plain(parser.description or ""), ""]
    lines += ["```", f"{parser.prog} [--config FILE] [--option value ...]", "```", ""]
    lines += _example(parser.epilog or "")
    lines += [
        "`--some_flag` and `--some-flag` are the same. A true/false option is switched on by `--flag` and off by "
        "`--no_flag`; `none` unsets an option that may be empty. Every option can also be written in the YAML file given "
        "with `--config`, without the dashes; flags override it.",
        "",
    ]
    for title, options in parser.groups().items():
        if not options:
            continue
        lines += [
            f"## {'LoRA' if title == 'lora' else title[:1].upper() + title[1:]}",
            "",
            "| option | values | default | meaning |",
            "|---|---|---|---|",
        ]
        lines += [_row(option, parser) for option in options]
        lines.append("")
    return "\n".join(lines)


def _example(epilog: str) -> list[str]:
    """What stands below a command's help: its command lines in a block, the rest in words."""
    parts = [part.removeprefix("then ") for part in epilog.removeprefix("example: ").split("; ")]
    commands = [part for part in parts if part.startswith("stepjepa ")]
    words = [_plain(part) for part in parts if part and part not in commands]
    return [*(["Example:", "", "```", *commands, "```", ""] if commands else []), *words, ""]


def _row(option: Option, parser: StrictParser) -> str:
    targets = {name: parser.aliases[name] for name in parser.spellings(option.name)}
    also = [
        f"`--{name}`{f' for `{target[1]}`' if isinstance(target, tuple) else ''}" for name, target in targets.items()
    ]
    meaning = _cell(option.help) + (f" Also {_cell(', '.join(also))}." if also else "")
    default = "required" if option.default is MISSING and option.hint is not bool else _default(option.default)
    values = option.metavar().strip("{}").replace(",", ", ")
    return f"| `--{option.name}` | {_cell(values)} | {default} | {meaning} |"


def _default(value: Any) -> str:
    if value is MISSING or value is None or value in ("", [], {}):
        return ""
    return f"`{_cell(str(getattr(value, 'value', value)).encode('unicode_escape').decode())}`"


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|")


def _plain(text: str) -> str:
    """One line in which HTML finds nothing to read."""
    return " ".join(text.split()).replace("<", "&lt;")


def _title(path: str) -> str:
    return Path(path).stem
