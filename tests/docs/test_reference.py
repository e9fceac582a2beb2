"""The reference pages hold what the parsers and the source hold, and the site asks nothing of other servers."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import yaml

from stepjepa.cli.main import COMMANDS
from stepjepa.config.option import MISSING

ROOT = Path(__file__).resolve().parents[2]


def options_of(page):
    """Flag -> (values, default, meaning) of a command's page."""
    rows = re.findall(r"^\| `--(\w+)` \| (.*?) \| (.*?) \| (.*) \|$", page, re.MULTILINE)
    return {flag: rest for flag, *rest in rows}


def test_every_option_of_every_command_stands_on_its_page(reference):
    pages = reference.command_pages()
    assert set(pages) == {f"reference/commands/{name}.md" for name in COMMANDS}
    for command, parser in reference.parsers().items():
        found = options_of(pages[f"reference/commands/{command}.md"])
        assert set(found) == set(parser.options), command
        for name, option in parser.options.items():
            values, default, meaning = found[name]
            assert (
                meaning
                and meaning != "."
                and " ".join(option.help.split())[:10].replace("<", "&lt;").replace("|", "\\|") in meaning
            )
            if option.default not in (MISSING, None, "", [], {}):
                assert default.startswith("`") and default != "``", (command, name)
            assert values


def test_a_page_in_full_words(reference):
    page = reference.command_pages()["reference/commands/check.md"]
    assert page.startswith("# stepjepa check\n\nCheck roles, texts and steps of a data file")
    assert (
        "\nExample:\n\n```\nstepjepa check train.jsonl --model_name mini --step_jepa --eval_file test.jsonl\n```\n"
        in page
    )
    found = options_of(page)
    assert found["num_proc"] == ["INT", "`1`", "Processes that count and tokenise rows."]
    assert found["labels"][2].endswith("Also `--train_all` for `all`.")
    assert found["objective"][:2] == [
        "regular, llm_jepa, step_jepa, split, semantic_tube, next_latent, multi_token, FILE:NAME",
        "`llm_jepa`",
    ]
    assert found["objective"][2].endswith("Also `--step_jepa` for `step_jepa`, `--regular` for `regular`.")
    assert found["json"][:2] == ["true\\|false", "`False`"] and "## Views\n" in page


def test_a_new_option_appears_by_itself(reference):
    from dataclasses import make_dataclass

    from stepjepa.config.option import option
    from stepjepa.config.parser import StrictParser

    options = make_dataclass("New", [("shiny", str, option("a\tb", "Say <x|y>.", "new things"))])
    page = reference.command_page("shine", StrictParser(options, "stepjepa shine\n\nexample: stepjepa shine"))
    assert "## New things\n" in page and "| `--shiny` | TEXT | `a\\tb` | Say &lt;x\\|y>. |" in page


def test_every_public_module_is_on_one_page(reference):
    pages = reference.api_pages()
    shown = [name for page in pages.values() for name in re.findall(r"^::: (\S+)$", page, re.MULTILINE)]
    assert len(shown) == len(set(shown))
    files = [file.relative_to(ROOT / "src") for file in (ROOT / "src" / "stepjepa").rglob("*.py")]
    texts = {file: (ROOT / "src" / file).read_text(encoding="utf-8") for file in files}
    # A package is a module itself where its __init__ defines something.
    files = [
        file for file in files if file.name != "__init__.py" or re.search(r"^(def|class) ", texts[file], re.MULTILINE)
    ]
    modules = {".".join(file.with_suffix("").parts).removesuffix(".__init__"): texts[file] for file in files}
    hidden = ("stepjepa.cli", "stepjepa.version")
    public = {name for name in modules if not (name.startswith(hidden) or re.search(r"\._|\b__", name))} - {"stepjepa"}
    assert set(shown) == public
    assert "::: stepjepa.training.trainer" in pages["reference/stepjepa.md"]
    for name in shown:
        ast.parse(modules[name])


def test_the_site_asks_nothing_of_other_servers():
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert settings["theme"]["font"] is False
    assert "extra_javascript" not in settings and "offline" in settings["plugins"]
    assert settings["extra"] == {"polyfills": ["assets/iframe-worker.js"]}  # else the plugin takes one from the network
    for style in settings["extra_css"]:
        assert "url(" not in (ROOT / "docs" / style).read_text(encoding="utf-8")
    assert "pymdownx.arithmatex" not in str(settings["markdown_extensions"])  # it needs a script for the formulas
    pages = [file.read_text(encoding="utf-8") for file in (ROOT / "docs").rglob("*.md")]
    assert not [page for page in pages if re.search(r"<script|^```mermaid|!\[[^\]]*\]\(https?:", page, re.MULTILINE)]


def test_mkdocs_gets_the_pages(reference):
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.plugins import PluginCollection
    from mkdocs.structure.files import Files

    config = MkDocsConfig()
    config.nav = [{"Home": "index.md"}, {"Reference": [{"Design decisions": "decisions.md"}]}]
    config.plugins = PluginCollection()
    config.plugins._current_plugin = None
    config.docs_dir, config.site_dir, config.use_directory_urls = "docs", "site", False
    _, python, commands = reference.on_config(config).nav[1]["Reference"]
    files = reference.on_files(Files([]), config)
    named = [path for section in (python["Python"], commands["Commands"]) for item in section for path in item.values()]
    assert sorted(named) == sorted(files.src_uris) and "reference/losses.md" in named
    page = files.src_uris["reference/commands/train.md"]
    assert page.content_string == reference.command_pages()["reference/commands/train.md"]
    assert {"train": "reference/commands/train.md"} in commands["Commands"]
