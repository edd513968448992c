"""Style is a test with a ratchet: what prose asks for and nothing checks is soon forgotten.

Every rule here is one sentence and one function. The few exceptions stand in the lists below with the number they
need today; a number that is no longer needed fails the test too, so the lists can only shrink.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.support.source import ROOT, SRC, Function, Module, dotted, parse_modules, split_identifier, sql_statements

MAX_FILE, MAX_FUNCTION, MAX_PARAMETERS = 500, 70, 5
EVERYWHERE = ("src", "tests", "bench")

LONGER_FILES: dict[str, int] = {}
LONGER_FUNCTIONS: dict[str, int] = {}
MORE_PARAMETERS: dict[str, int] = {}
STATEMENTS_THAT_DIFFER = 0
PACKAGES_WITHOUT_PROSE = {
    # Must stay nearly empty: every `qd` command imports it.
    "src/quarterdeck/__init__.py",
    # Alembic's tree: its files are found by path, nothing is decided in its packages.
    "src/quarterdeck/store/migrations/__init__.py",
    "src/quarterdeck/store/migrations/versions/__init__.py",
}
EVERYTHING = ("Exception", "BaseException")
LEFT_TO_DO = re.compile(r"\b(?:TODO|FIXME|XXX)\b")
SILENCING = re.compile(r"# (?:type: ignore|(?:ruff: )?noqa\b)")
MAY_SLEEP = {"tests/support/eventually.py"}
MAY_READ_THE_ENVIRONMENT = ("src/quarterdeck/settings.py", "src/quarterdeck/client/", "src/quarterdeck/cli/")
# What other houses call our nouns. On the wire each seed keeps its own words; in the code one thing has one word.
SYNONYMS = {"tenant", "tenants", "workspace", "workspaces", "organization", "organisation", "subagent", "subagents"}


def test_no_file_is_longer_than_500_lines() -> None:
    lengths = {module.path: len(module.text.splitlines()) for module in parse_modules(*EVERYWHERE)}
    assert_ratchet({path: n for path, n in lengths.items() if n > MAX_FILE}, LONGER_FILES)


def test_no_function_is_longer_than_70_lines() -> None:
    lengths = {where: (node.end_lineno or 0) - node.lineno + 1 for where, node in all_functions()}
    assert_ratchet({where: n for where, n in lengths.items() if n > MAX_FUNCTION}, LONGER_FUNCTIONS)


def test_no_function_has_more_than_5_parameters() -> None:
    counts = {where: len(parameters(node)) for where, node in all_functions()}
    assert_ratchet({where: n for where, n in counts.items() if n > MAX_PARAMETERS}, MORE_PARAMETERS)


def test_tests_wait_for_events_and_never_for_time() -> None:
    sleeps = {"time.sleep", "asyncio.sleep", "anyio.sleep", "sleep"}
    found = [
        f"{module.path}:{node.lineno}"
        for module in parse_modules("tests")
        if module.path not in MAY_SLEEP
        for node in module.walk()
        if isinstance(node, ast.Call) and dotted(node.func) in sleeps and not is_zero(node)
    ]
    assert not found, f"wait for an event, or use tests/support/eventually.py: {found}"


def test_whoever_catches_everything_swallows_nothing_and_says_why() -> None:
    found = [
        f"{module.path}:{handler.lineno}"
        for module in parse_modules(*EVERYWHERE)
        for handler in module.walk()
        if isinstance(handler, ast.ExceptHandler) and catches_everything(handler) and not accounts(module, handler)
    ]
    found += [
        f"{module.path}:{node.lineno}"
        for module in parse_modules(*EVERYWHERE)
        for node in module.walk()
        if isinstance(node, ast.Call)
        and dotted(node.func) in ("suppress", "contextlib.suppress")
        and any(dotted(kind) in EVERYTHING for kind in node.args)
    ]
    assert not found, f"a broad except raises, or logs or hands on the error; and it says why it is so broad: {found}"


def test_whatever_silences_a_check_says_why() -> None:
    found = [
        f"{module.path}:{number}"
        for module in parse_modules(*EVERYWHERE)
        if SILENCING.search(module.text)
        for number, comment in sorted(module.comments().items())
        if SILENCING.search(comment) and not is_argued(module, number, comment)
    ]
    assert not found, f"say beside it why the check is wrong here, or do without: {found}"


def test_what_is_left_to_do_is_no_comment() -> None:
    found = [
        f"{module.path}:{number}"
        for module in parse_modules(*EVERYWHERE)
        if LEFT_TO_DO.search(module.text)
        for number, comment in module.comments().items()
        if LEFT_TO_DO.search(comment)
    ]
    assert not found, f"do it, or say it where it is planned: {found}"


def test_the_code_speaks_of_zones_and_sessions_and_uses_no_synonyms() -> None:
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
    assert not found, f"use the nouns of the design: {found}"


def test_every_sql_statement_has_a_name_and_a_reason() -> None:
    found = []
    for statement in sql_statements():
        where = f"{statement.path}: {statement.name or '(no name)'}"
        if not re.fullmatch(r"[a-z][a-z0-9_]*", statement.name):
            found.append(f"{where} needs a name of small letters")
        if len(" ".join(statement.reasons)) < 20:
            found.append(f"{where} needs a comment that says why it is written this way")
        # One text for each engine it names, or one for both: more than that runs under a name that is not its own.
        if statement.body.rstrip(";").count(";") >= max(1, len(statement.engines)):
            found.append(f"{where} holds a statement without a name")
    assert not found, found


def test_statements_that_differ_between_the_engines_say_why_and_become_fewer() -> None:
    differing = [statement for statement in sql_statements() if statement.engines or statement.differs]
    silent = [statement.name for statement in differing if not statement.differs]
    assert not silent, f"written per engine without a `-- differs:` line: {silent}"
    assert len(differing) == STATEMENTS_THAT_DIFFER, (
        f"the count may only fall, and is lowered here when it does: {[statement.name for statement in differing]}"
    )


def test_every_package_opens_with_a_page_of_prose() -> None:
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
    assert not found, f"say what the package decides and how it fails: {sorted(found)}"


def test_only_settings_and_the_command_line_read_the_environment() -> None:
    found = [
        f"{module.path}:{node.lineno}"
        for module in parse_modules("src")
        if not module.path.startswith(MAY_READ_THE_ENVIRONMENT)
        for node in module.walk()
        if isinstance(node, ast.Attribute | ast.ImportFrom) and reads_environment(node)
    ]
    assert not found, f"declare a setting instead: {found}"


def test_no_file_names_a_path_of_the_machine_it_was_written_on() -> None:
    # In two pieces, so that this file does not name one itself.
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
    assert not worse, f"too large, split it (and do not raise an exception's number): {worse}"
    slack = {where: n for where, n in allowed.items() if over.get(where, 0) < n}
    assert not slack, f"no longer as large as its exception says, lower or remove the exception: {slack}"


def all_functions() -> Iterator[tuple[str, Function]]:
    for module in parse_modules(*EVERYWHERE):
        for name, node in module.functions():
            yield f"{module.path}::{name}", node


def parameters(node: Function) -> list[str]:
    named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return [argument.arg for argument in named if argument.arg not in ("self", "cls")]


def is_zero(call: ast.Call) -> bool:
    """`sleep(0)` waits for nothing: it lets others run."""
    return len(call.args) == 1 and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0


def catches_everything(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or dotted(kind) in EVERYTHING for kind in kinds)


def accounts(module: Module, handler: ast.ExceptHandler) -> bool:
    """Raises, or logs the error, or hands it on to somebody; and has a comment."""
    inside = list(ast.walk(handler))
    raises = any(isinstance(node, ast.Raise) for node in inside)
    hands_on = any(isinstance(node, ast.Name) and node.id == handler.name for node in inside)
    logs = any(isinstance(node, ast.Call) and is_log(dotted(node.func)) for node in inside)
    lines = range(handler.lineno, (handler.end_lineno or handler.lineno) + 1)
    return (raises or hands_on or logs) and not module.comments().keys().isdisjoint(lines)


def is_argued(module: Module, number: int, comment: str) -> bool:
    """A check of one line is argued with behind it; one of a whole file in the line above."""
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
