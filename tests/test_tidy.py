"""Style rules, each one function.

The exceptions are in the lists below, with the number they need today. A number that is too high fails the test too,
so the lists can only shrink. Words have a test of their own: `test_vocabulary.py`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.support.source import ROOT, SRC, Function, Module, dotted, parse_modules, split_identifier, sql_statements

MAX_FILE, MAX_FUNCTION, MAX_PARAMETERS = 500, 70, 5
FOLDERS = ("src", "tests", "bench")

LONGER_FILES: dict[str, int] = {}
LONGER_FUNCTIONS: dict[str, int] = {}
MORE_PARAMETERS: dict[str, int] = {}
STATEMENTS_THAT_DIFFER = 0
PACKAGES_WITHOUT_PROSE = {
    # Nearly empty: every `qd` command imports it.
    "src/quarterdeck/__init__.py",
    # Alembic finds these files by path.
    "src/quarterdeck/store/migrations/__init__.py",
    "src/quarterdeck/store/migrations/versions/__init__.py",
}
BROAD_EXCEPTIONS = ("Exception", "BaseException")
TODO_MARKERS = re.compile(r"\b(?:TODO|FIXME|XXX)\b")
SUPPRESSION = re.compile(r"# (?:type: ignore|(?:ruff: )?noqa\b)")
SLEEP_ALLOWED = {"tests/support/eventually.py"}
ENVIRONMENT_READERS = ("src/quarterdeck/settings.py", "src/quarterdeck/client/", "src/quarterdeck/cli/")
# Other names of our nouns. The wire uses some of them; the code does not.
SYNONYMS = {"tenant", "tenants", "workspace", "workspaces", "organization", "organisation", "subagent", "subagents"}


def test_no_file_is_longer_than_500_lines() -> None:
    lengths = {module.path: len(module.text.splitlines()) for module in parse_modules(*FOLDERS)}
    assert_ratchet({path: n for path, n in lengths.items() if n > MAX_FILE}, LONGER_FILES)


def test_no_function_is_longer_than_70_lines() -> None:
    lengths = {where: (node.end_lineno or 0) - node.lineno + 1 for where, node in all_functions()}
    assert_ratchet({where: n for where, n in lengths.items() if n > MAX_FUNCTION}, LONGER_FUNCTIONS)


def test_no_function_has_more_than_5_parameters() -> None:
    counts = {where: len(parameters(node)) for where, node in all_functions()}
    assert_ratchet({where: n for where, n in counts.items() if n > MAX_PARAMETERS}, MORE_PARAMETERS)


def test_tests_wait_for_events_not_for_time() -> None:
    sleeps = {"time.sleep", "asyncio.sleep", "anyio.sleep", "sleep"}
    found = [
        f"{module.path}:{node.lineno}"
        for module in parse_modules("tests")
        if module.path not in SLEEP_ALLOWED
        for node in module.walk()
        if isinstance(node, ast.Call) and dotted(node.func) in sleeps and not is_zero(node)
    ]
    assert not found, f"wait for an event, or use tests/support/eventually.py: {found}"


def test_broad_except_raises_or_logs_and_has_a_comment() -> None:
    found = [
        f"{module.path}:{handler.lineno}"
        for module in parse_modules(*FOLDERS)
        for handler in module.walk()
        if isinstance(handler, ast.ExceptHandler) and is_broad(handler) and not handles_error(module, handler)
    ]
    found += [
        f"{module.path}:{node.lineno}"
        for module in parse_modules(*FOLDERS)
        for node in module.walk()
        if isinstance(node, ast.Call)
        and dotted(node.func) in ("suppress", "contextlib.suppress")
        and any(dotted(kind) in BROAD_EXCEPTIONS for kind in node.args)
    ]
    assert not found, (
        f"a broad except must raise, log or pass on the error, and have a comment with the reason: {found}"
    )


def test_suppressed_checks_have_a_reason() -> None:
    found = [
        f"{module.path}:{number}"
        for module in parse_modules(*FOLDERS)
        if SUPPRESSION.search(module.text)
        for number, comment in sorted(module.comments().items())
        if SUPPRESSION.search(comment) and not has_reason(module, number, comment)
    ]
    assert not found, f"give the reason beside it, or remove it: {found}"


def test_comments_have_no_todo_markers() -> None:
    found = [
        f"{module.path}:{number}"
        for module in parse_modules(*FOLDERS)
        if TODO_MARKERS.search(module.text)
        for number, comment in module.comments().items()
        if TODO_MARKERS.search(comment)
    ]
    assert not found, f"do it, or file it as an issue: {found}"


def test_code_uses_the_glossarys_nouns_and_no_synonyms() -> None:
    found = [
        f"{module.path}: {name}"
        for module in parse_modules("src")
        for name in identifiers(module)
        if SYNONYMS.intersection(split_identifier(name))
    ]
    found += [
        f"{statement.path}: {statement.name}"
        for statement in sql_statements()
        if SYNONYMS.intersection(split_identifier(f"{statement.name} {statement.body}"))
    ]
    assert not found, f"use the nouns of docs/glossary.md: {found}"


def test_every_sql_statement_has_a_name_and_a_reason() -> None:
    found = []
    for statement in sql_statements():
        where = f"{statement.path}: {statement.name or '(no name)'}"
        if not re.fullmatch(r"[a-z][a-z0-9_]*", statement.name):
            found.append(f"{where} needs a lower-case name")
        if len(" ".join(statement.reasons)) < 20:
            found.append(f"{where} needs a comment that says why it is written this way")
        # One text per engine it names, or one for both. A further statement would have no name of its own.
        if statement.body.rstrip(";").count(";") >= max(1, len(statement.engines)):
            found.append(f"{where} contains a statement without a name")
    assert not found, found


def test_statements_that_differ_between_engines_have_a_reason() -> None:
    differing = [statement for statement in sql_statements() if statement.engines or statement.differs]
    silent = [statement.name for statement in differing if not statement.differs]
    assert not silent, f"written per engine without a `-- differs:` line: {silent}"
    assert len(differing) == STATEMENTS_THAT_DIFFER, (
        f"the count may only fall; lower it here when it does: {[statement.name for statement in differing]}"
    )


def test_every_package_has_a_page_of_documentation() -> None:
    thin = {
        module.path
        for module in parse_modules("src")
        if module.path.endswith("/__init__.py") and len(ast.get_docstring(module.tree) or "") < 200
    }
    bare = {
        f"{folder.relative_to(ROOT).as_posix()}/__init__.py"
        for folder in SRC.rglob("*")
        if folder.is_dir() and any(folder.glob("*.py")) and not (folder / "__init__.py").exists()
    }
    found = (thin | bare) - PACKAGES_WITHOUT_PROSE
    assert not found, f"describe what the package decides and how it fails: {sorted(found)}"


def test_only_settings_client_and_cli_read_the_environment() -> None:
    found = [
        f"{module.path}:{node.lineno}"
        for module in parse_modules("src")
        if not module.path.startswith(ENVIRONMENT_READERS)
        for node in module.walk()
        if isinstance(node, ast.Attribute | ast.ImportFrom) and reads_environment(node)
    ]
    assert not found, f"declare a setting instead: {found}"


def test_no_file_contains_a_path_of_a_developers_machine() -> None:
    # In two parts, so that this file does not match.
    homes = re.compile(r"(?<![\w.])/(?:" + "root|home|Users|work" + r")/[\w.]")
    found = [
        f"{path}:{number}"
        for path, text in text_files()
        for number, line in enumerate(text.splitlines(), 1)
        if homes.search(line)
    ]
    assert not found, found


def assert_ratchet(over: dict[str, int], allowed: dict[str, int]) -> None:
    worse = {where: n for where, n in over.items() if n > allowed.get(where, 0)}
    assert not worse, f"too large: split it, do not raise the exception: {worse}"
    slack = {where: n for where, n in allowed.items() if over.get(where, 0) < n}
    assert not slack, f"lower or remove these exceptions: {slack}"


def all_functions() -> Iterator[tuple[str, Function]]:
    for module in parse_modules(*FOLDERS):
        for name, node in module.functions():
            yield f"{module.path}::{name}", node


def parameters(node: Function) -> list[str]:
    named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return [argument.arg for argument in named if argument.arg not in ("self", "cls")]


def is_zero(call: ast.Call) -> bool:
    """`sleep(0)` only yields to other tasks."""
    return len(call.args) == 1 and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0


def is_broad(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or dotted(kind) in BROAD_EXCEPTIONS for kind in kinds)


def handles_error(module: Module, handler: ast.ExceptHandler) -> bool:
    """Raises, logs the error or passes it on; and has a comment."""
    inside = list(ast.walk(handler))
    raises = any(isinstance(node, ast.Raise) for node in inside)
    passes_on = any(isinstance(node, ast.Name) and node.id == handler.name for node in inside)
    logs = any(isinstance(node, ast.Call) and is_log(dotted(node.func)) for node in inside)
    lines = range(handler.lineno, (handler.end_lineno or handler.lineno) + 1)
    return (raises or passes_on or logs) and not module.comments().keys().isdisjoint(lines)


def has_reason(module: Module, number: int, comment: str) -> bool:
    """A reason for one line follows it; a reason for a file is in the line above."""
    if "ruff: noqa" in comment:
        return number - 1 in module.comments()
    behind = re.sub(r".*?# (?:type: ignore(?:\[[\w, -]+\])?|noqa(?:: [A-Z]+\d+(?:, ?[A-Z]+\d+)*)?)", "", comment)
    return len(re.findall(r"[A-Za-z']+", behind)) >= 2


def is_log(call: str) -> bool:
    return re.search(r"\blog(ger|ging)?\.(debug|info|warning|error|exception|critical)$", call) is not None


def identifiers(module: Module) -> Iterator[str]:
    for node in module.walk():
        if isinstance(node, Function | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


def reads_environment(node: ast.Attribute | ast.ImportFrom) -> bool:
    names = {"environ", "environb", "getenv", "getenvb"}
    if isinstance(node, ast.ImportFrom):
        return node.module == "os" and any(alias.name in names for alias in node.names)
    return dotted(node) in {f"os.{name}" for name in names}


def text_files() -> Iterator[tuple[str, str]]:
    kinds = {".py", ".sql", ".md", ".toml", ".txt", ".svg", ".html", ".json", ".yml", ".yaml"}
    folders = ("src", "tests", "bench", "docs", ".ci")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*") if file.is_file()]
    files += [file for file in ROOT.iterdir() if file.is_file()]
    for file in sorted(files):
        if (file.suffix in kinds or not file.suffix) and "__pycache__" not in file.parts:
            yield file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8")
