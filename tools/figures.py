"""What the figures of `tools/house.py` count, on tokens and syntax trees: how much there is to read, how densely it is
written, names that are restated, imports.

- `code_tokens`: tokens of Python's tokenizer under `src/`, without comments, docstrings and line structure. `tokens_a_line`:
  those of a line that holds any. `comment_share`: per cent of the lines that hold a comment and nothing else.
- `dense_functions`: functions with a body of six lines or more and over seven nodes a line (names, attributes, constants,
  calls, operators and comparisons; annotations and the docstring apart). `fstring_nodes`: such nodes inside f-strings.
- `doubled_classes`: names of public classes that exist twice.
- `private_names`: private names of other libraries that the code uses: attributes with one underscore in front that nothing
  under `src/` defines, private names that are imported, and `trainer_names`: those of transformers' `Trainer`, overridden
  ones included.
- `docstring_share`: per cent of the lines under `src/` that are part of a docstring of a module, class or function.
- `objective_literals`: string literals equal to an objective's name, outside `objectives/`, `recipes/` and the table of
  spellings (`spellings.py`). Docstrings do not count, here and below.
- `option_literals`: places that restate the name of an option, outside the tables of other spellings (`spellings.py`,
  `gone.py`). An option is a field that a class body assigns from
  `option(...)`; text inside such a call (help, metadata) does not count. Each of these counts as one:
    - an option's name as the second argument of `getattr`, `setattr`, `hasattr` or `delattr`;
    - every option's name in a table: the texts of a list, tuple or set display, the keys of a dictionary, the words of a
      text of blank-separated identifiers. A table holds two names or more, and they are at least half of its texts; among
      blank-separated words one has an underscore, for options also bear plain words (`file`, `format`);
    - every `--name` in any other text, and in texts of several words every name with an underscore (`max_length is 0`).
- `file_circles`, `package_circles`: groups of files (of names right below the library's own) that import each other in a
  circle. Imports inside functions and `import_module("...")` count, for files those under `TYPE_CHECKING` too.
- `any_signatures`: parameters and results of public functions and methods that are annotated `Any` and nothing else. Public
  is what has no underscore in front, nor a class or function around it that has one or is a function.
- `open_packages`: folders that may import every other one, by `ALLOWED` of `tests/test_import_order.py`.
"""

from __future__ import annotations

import ast
import importlib.util
import io
import re
import runpy
import tokenize
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PACKAGE = "stepjepa"
OBJECTIVES = {
    "regular",
    "llm_jepa",
    "step_jepa",
    "split",
    "semantic_tube",
    "next_latent",
    "multi_token",
    "future_summary",
    "steps_to_answer",
}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_WORDS = re.compile(r"[a-z0-9_]+(\s+[a-z0-9_]+)+\s*")
_STRUCTURE = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.COMMENT}
_NODES = (ast.Name, ast.Attribute, ast.Constant, ast.Call, ast.BinOp, ast.Compare)
_DENSE_LINES, _DENSE_NODES = 6, 7.0
# Documented, in spite of their underscore: of named tuples, and `os._exit`.
_PUBLIC = {"_replace", "_asdict", "_fields", "_make", "_exit"}


@dataclass
class Source:
    """One Python file: its path below the root of what is measured, and its text."""

    path: Path
    text: str

    @property
    def module(self) -> str:
        return ".".join(self.path.with_suffix("").parts).removesuffix(".__init__")

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(ast.parse(self.text)))

    @cached_property
    def docstrings(self) -> list[ast.Constant]:
        bodies = [node.body for node in self.nodes if isinstance(node, _DOCUMENTED) and node.body]
        firsts = [body[0].value for body in bodies if isinstance(body[0], ast.Expr)]
        return [first for first in firsts if isinstance(first, ast.Constant) and isinstance(first.value, str)]

    @cached_property
    def docstring_lines(self) -> set[int]:
        return {line for text in self.docstrings for line in range(text.lineno, (text.end_lineno or text.lineno) + 1)}

    @cached_property
    def tokens(self) -> list[tokenize.TokenInfo]:
        return list(tokenize.generate_tokens(io.StringIO(self.text).readline))

    @cached_property
    def code_tokens(self) -> list[tokenize.TokenInfo]:
        ignored = self.docstring_lines
        return [one for one in self.tokens if one.type not in _STRUCTURE and one.start[0] not in ignored]

    @property
    def code_lines(self) -> set[int]:
        return {line for one in self.code_tokens for line in range(one.start[0], one.end[0] + 1)}

    @property
    def comment_lines(self) -> int:
        comments = (one for one in self.tokens if one.type == tokenize.COMMENT)
        return sum(not one.line[: one.start[1]].strip() for one in comments)


@dataclass
class Figure:
    """A value, and a line for every part of it."""

    value: float
    parts: list[str]


def read(folder: Path) -> list[Source]:
    """All Python files below a folder, by name; their paths begin with the folder's own name."""
    paths = sorted(folder.rglob("*.py"))
    return [Source(path.relative_to(folder.parent), path.read_text(encoding="utf-8")) for path in paths]


class _WithoutAnnotations(ast.NodeTransformer):
    """Takes the annotations out of a syntax tree."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns = None
        self.generic_visit(node)
        return node

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        node.annotation = ast.Constant(None)
        self.generic_visit(node)
        return node


def dense_functions(sources: list[Source]) -> list[str]:
    """The functions with too many nodes a line, the densest first."""
    hits = list[tuple[float, str]]()
    for source in sources:
        for node in ast.walk(_WithoutAnnotations().visit(ast.parse(source.text))):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
            if not body:
                continue
            length = (body[-1].end_lineno or body[-1].lineno) - body[0].lineno + 1
            nodes = sum(isinstance(part, _NODES) for statement in body for part in ast.walk(statement))
            if length >= _DENSE_LINES and nodes / length > _DENSE_NODES:
                hits.append((nodes / length, f"{source.path}:{node.lineno} {node.name}"))
    return [f"{ratio:5.1f}  {place}" for ratio, place in sorted(hits, reverse=True)]


def fstring_nodes(source: Source) -> int:
    """Nodes inside the f-strings of a file."""
    values = (node.value for node in source.nodes if isinstance(node, ast.FormattedValue))
    return sum(isinstance(part, _NODES) for value in values for part in ast.walk(value))


def doubled_classes(sources: list[Source]) -> list[str]:
    """Names of public classes that are defined more than once."""
    classes = [node for source in sources for node in source.nodes if isinstance(node, ast.ClassDef)]
    times = Counter(node.name for node in classes if not node.name.startswith("_"))
    return sorted(name for name, count in times.items() if count > 1)


def is_private(name: str) -> bool:
    """Whether a name has one underscore in front."""
    return name.startswith("_") and not name.startswith("__") and name not in {"_", *_PUBLIC}


def defined_names(nodes: list[ast.AST]) -> set[str]:
    """What functions, classes, assignments and attributes that are assigned to define."""
    names = set[str]()
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names |= {node.attr} if getattr(node.value, "id", "") in ("self", "cls") else set()
    return names


def trainer_names() -> set[str]:
    """The private names that transformers' `Trainer` defines, read from its source."""
    package = importlib.util.find_spec("transformers")
    if package is None or package.origin is None:
        return set()
    path = Path(package.origin).with_name("trainer.py")
    return set(filter(is_private, defined_names(list(ast.walk(ast.parse(path.read_text(encoding="utf-8")))))))


def private_names(sources: list[Source], of_trainer: set[str]) -> dict[str, list[str]]:
    """Private names of other libraries, each with the places that use it."""
    own = {name for source in sources for name in defined_names(source.nodes)}
    places = defaultdict[str, list[str]](list)
    for source in sources:
        # In the package of the trainer a name that `Trainer` has is its, also where a subclass overrides it.
        shared = of_trainer if source.path.parts[1] == "training" else set()
        for node in source.nodes:
            names: list[str] = []
            if isinstance(node, ast.Attribute):
                names = [node.attr]
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                names = [node.name] if node.name in shared else []
            elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith(PACKAGE):
                names = [alias.name for alias in node.names] + (node.module or "").split(".")
            for name in filter(is_private, names):
                if name in shared or name not in own:
                    places[name].append(f"{source.path}:{node.lineno}")
    return dict(places)


def objective_literals(sources: list[Source]) -> list[str]:
    """Where an objective is named outside the places that may."""
    hits = list[str]()
    for source in sources:
        if {"objectives", "recipes", "spellings.py"}.isdisjoint(source.path.parts):
            ignored = {id(text) for text in source.docstrings}
            texts = (node for node in source.nodes if isinstance(node, ast.Constant) and id(node) not in ignored)
            hits += [f"{source.path}:{node.lineno}: {node.value}" for node in texts if node.value in OBJECTIVES]
    return hits


def called(node: ast.AST) -> str:
    """The plain name of the function that a node calls, empty for any other node."""
    function = node.func if isinstance(node, ast.Call) else None
    return getattr(function, "attr", getattr(function, "id", ""))


def option_names(sources: list[Source]) -> set[str]:
    """The fields that are assigned from `option(...)`."""
    nodes = (node for source in sources for node in source.nodes if isinstance(node, ast.AnnAssign))
    return {node.target.id for node in nodes if isinstance(node.target, ast.Name) and called(node.value) == "option"}


def in_table(texts: list[object], names: set[str]) -> list[str]:
    """The option names among the texts of a table; none where it is no table of options."""
    texts = [text for text in texts if isinstance(text, str)]
    found = [text for text in texts if text in names]
    return found if len(found) > 1 and 2 * len(found) >= len(texts) else []


def in_text(text: str, names: set[str]) -> list[str]:
    """The option names in a string literal: all words of a blank-separated table, or what a message names."""
    words = text.split()
    table = in_table(list(words), names) if _WORDS.fullmatch(text) else []
    if any("_" in name for name in table):
        return table
    flags = re.findall(r"--([a-z]\w*)", text)
    bare = re.findall(r"(?<![-\w])[a-z]+_\w+", text) if len(words) > 1 else []
    return [name for name in (*flags, *bare) if name in names]


def option_literals(sources: list[Source]) -> list[str]:
    """Where the name of an option is restated; see the top of the file."""
    names, hits = option_names(sources), list[str]()
    for source in sources:
        if source.path.name in ("spellings.py", "gone.py"):
            continue
        ignored = {id(text) for text in source.docstrings}
        for node in source.nodes:
            if called(node) == "option":
                ignored.update(map(id, ast.walk(node)))
        for node in source.nodes:
            if id(node) in ignored:
                continue
            found: list[str] = []
            if called(node) in ("getattr", "setattr", "hasattr", "delattr"):
                found = [
                    part.value for part in node.args[1:2] if isinstance(part, ast.Constant) and part.value in names
                ]
            elif isinstance(node, (ast.List, ast.Tuple, ast.Set)):
                found = in_table([getattr(part, "value", None) for part in node.elts], names)
            elif isinstance(node, ast.Dict):
                found = in_table([getattr(key, "value", None) for key in node.keys], names)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found = in_text(node.value, names)
            hits += [f"{source.path}:{node.lineno}: {name}" for name in found]
    return hits


def imports(source: Source, known: set[str], for_types: bool = True) -> set[str]:
    """The modules of `known`, as dotted names, that a file imports; `for_types`: also under `TYPE_CHECKING`."""
    package = source.module.split(".") if source.path.name == "__init__.py" else source.module.split(".")[:-1]
    ignored = {
        id(inner)
        for node in source.nodes
        if not for_types
        and isinstance(node, ast.If)
        and "TYPE_CHECKING" in (getattr(node.test, "id", ""), getattr(node.test, "attr", ""))
        for part in node.body
        for inner in ast.walk(part)
    }
    found = set[str]()
    for node in source.nodes:
        if id(node) in ignored:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            inner = {f"{start}.{alias.name}" for alias in node.names}
            found |= {name if name in known else start for name in inner}
        elif called(node) in ("import_module", "__import__") and isinstance(node.args[0], ast.Constant):
            found.add(node.args[0].value)
    return (found & known) - {source.module}


def circles(links: dict[str, set[str]]) -> list[str]:
    """The groups of nodes that reach each other, a line each."""

    def reached(start: str) -> set[str]:
        seen, waiting = set[str](), [start]
        while waiting:
            new = links.get(waiting.pop(), set()) - seen
            seen |= new
            waiting += new
        return seen

    reach = {node: reached(node) for node in links}
    groups = {
        tuple(sorted(o for o in reach[node] if node in reach.get(o, ()))) for node in links if node in reach[node]
    }
    return [" <-> ".join(group) for group in sorted(groups)]


def import_links(sources: list[Source]) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Who imports whom: files by dotted name, and packages (the first name below the library's own)."""
    known = {source.module for source in sources}
    files = {source.module: imports(source, known) for source in sources}
    packages: dict[str, set[str]] = defaultdict(set)
    run = {source.module: imports(source, known, for_types=False) for source in sources}
    for name, targets in run.items():
        part = [*name.split("."), ""][1]
        packages[part] |= {[*target.split("."), ""][1] for target in targets} - {part}
    return files, dict(packages)


def open_packages(sources: list[Source], allowed: dict[str, set[str]]) -> list[str]:
    """The folders that may import every other one."""
    folders = {source.path.parts[1] for source in sources if len(source.path.parts) > 2}
    return [name for name in sorted(folders) if allowed.get(name, set()) >= folders - {name}]


def any_signatures(sources: list[Source]) -> list[str]:
    """Where the signature of a public function leaves a type open."""
    hits = list[str]()

    def visit(path: Path, body: list[ast.stmt]) -> None:
        for node in body:
            name = getattr(node, "name", "_")
            if name.startswith("_") and name != "__init__":
                continue
            if isinstance(node, ast.ClassDef):
                visit(path, node.body)
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                types = {one.arg: one.annotation for one in given} | {"return": node.returns}
                open_ones = [name for name, kind in types.items() if isinstance(kind, ast.Name) and kind.id == "Any"]
                hits.extend(f"{path}:{node.lineno}: {node.name}: {name}" for name in open_ones)

    for source in sources:
        visit(source.path, ast.parse(source.text).body)
    return hits


def summed(sizes: dict[Path, int]) -> Figure:
    """The sum of a number by file, the largest first."""
    ordered = sorted(sizes.items(), key=lambda item: -item[1])
    return Figure(sum(sizes.values()), [f"{size:5d} {path}" for path, size in ordered])


def measure(root: Path) -> dict[str, Figure]:
    """Every figure that needs no code to run."""
    source, tests = read(root / "src" / PACKAGE), read(root / "tests")
    allowed = runpy.run_path(str(root / "tests" / "test_import_order.py"))["ALLOWED"]
    files, packages = import_links(source)
    lines = {one.path: len(one.lines) for one in source}
    documented = summed({one.path: len(one.docstring_lines) for one in source})
    found = {
        "objective_literals": objective_literals(source),
        "option_literals": option_literals(source),
        "file_circles": circles(files),
        "package_circles": circles(packages),
        "open_packages": open_packages(source, allowed),
        "any_signatures": any_signatures(source),
    }
    private = private_names(source, trainer_names())
    used = sorted(private.items(), key=lambda item: -len(item[1]))
    of_trainer = [(name, places) for name, places in used if name in trainer_names()]
    code_lines = sum(len(one.code_lines) for one in source)
    tokens = summed({one.path: len(one.code_tokens) for one in source})
    comments = summed({one.path: one.comment_lines for one in source})
    densities = sorted((len(one.code_tokens) / max(len(one.code_lines), 1), str(one.path)) for one in source)
    return {
        "code_tokens": tokens,
        "tokens_a_line": Figure(
            round(tokens.value / code_lines, 2), [f"{ratio:5.1f} {path}" for ratio, path in reversed(densities)]
        ),
        "dense_functions": listed(dense_functions(source)),
        "fstring_nodes": summed({one.path: fstring_nodes(one) for one in source}),
        "comment_share": Figure(round(100 * comments.value / sum(lines.values()), 1), comments.parts),
        "docstring_share": Figure(round(100 * documented.value / sum(lines.values()), 1), documented.parts),
        "src_files": listed([str(one.path) for one in source]),
        "private_names": listed([f"{name}: {', '.join(places)}" for name, places in used]),
        "trainer_names": listed([f"{name}: {', '.join(places)}" for name, places in of_trainer]),
        "doubled_classes": listed(doubled_classes(source)),
        "tests_lines": summed({one.path: len(one.lines) for one in tests}),
        **{name: listed(parts) for name, parts in found.items()},
    }


def listed(parts: list[str]) -> Figure:
    """How many parts there are."""
    return Figure(len(parts), parts)
