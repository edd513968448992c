"""The examples of the documentation work, and print what the pages show."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from quarterdeck.cli.registry import MODULES, load_commands
from tests.support.documented_examples import Block, read_blocks, read_steps, run_page
from tests.support.server import Servers
from tests.support.source import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOT_RUN_REASONS = {
    "installs Quarterdeck",
    "runs until it is stopped",
    "needs PostgreSQL",
    "needs Redis",
    "needs tmux and a coding agent",
    "ends the server",
    "has a test of its own",
    "long",
}


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def has_examples(page: Path) -> bool:
    return any(block.not_run_reason is None and block.language == "console" for block in read_blocks(page))


@pytest.mark.parametrize("page", [page for page in PAGES if has_examples(page)], ids=name_of)
async def test_commands_of_the_page_print_what_it_shows(page: Path, servers: Servers, tmp_path: Path) -> None:
    directory = tmp_path / "page"
    directory.mkdir()
    problems = run_page(page, await servers.start(), directory)
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_of_the_page_is_valid(page: Path) -> None:
    for block in read_blocks(page):
        if block.language == "python":
            ast.parse(block.text, f"{page.name}, line {block.line}")


def test_index_and_site_list_every_page() -> None:
    index, site = ((ROOT / name).read_text(encoding="utf-8") for name in ("docs/README.md", "mkdocs.yml"))
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if f": {page}\n" not in site} == set()
    decisions = {page for page in pages if page.startswith("decisions/")}  # listed in decisions/README.md
    assert {page for page in pages - decisions - {"README.md"} if f"]({page})" not in index} == set()


def test_page_of_commands_has_every_command() -> None:
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    commands = [command.words for word in MODULES for command in load_commands(word)]
    assert [words for words in commands if not re.search(rf"`(?:qd )?(?:{words[0]} )?{words[-1]}\b", text)] == []


def test_blocks_are_only_left_out_for_a_known_reason() -> None:
    reasons = {block.not_run_reason for page in PAGES for block in read_blocks(page)} - {None}
    assert reasons <= NOT_RUN_REASONS


def test_steps_have_their_continuations_and_their_output() -> None:
    block = Block("console", "$ qd a \\\n    --b\nx\ny\n$ cat <<E\n> z\n> E\n$ false\n$ echo $?\n1\n", 5)
    assert [(step.line, step.command, step.output, step.may_fail) for step in read_steps(block)] == [
        (5, "qd a \\\n    --b", ("x", "y"), False),
        (9, "cat <<E\nz\nE", (), False),
        (12, "false", (), True),
        (13, "echo $?", ("1",), False),
    ]


PAGE = """
<!-- file: hello.sh -->
```bash
echo hello $1
```

```console
$ bash hello.sh world
hello …
$ qd zone show nowhere
qd: …
$ (exit 7)
$ echo $?
7
$ curl -s http://127.0.0.1:4000/health
…
```

<!-- not run: long -->
```console
$ exit 1
```
"""


async def test_page_that_prints_what_it_shows_has_no_problems(servers: Servers, tmp_path: Path) -> None:
    server = await servers.start()
    for number, (old, new, problem) in enumerate(
        [
            ("", "", None),
            ("hello …", "goodbye …", "prints something else"),
            ("qd: …\n", "", "exits with 4"),
            ("$ (exit 7)\n", "", "prints something else"),
        ]
    ):
        directory = tmp_path / str(number)
        directory.mkdir()
        page = directory / "page.md"
        page.write_text(PAGE.replace(old, new), encoding="utf-8")
        problems = run_page(page, server, directory)
        if problem is None:
            assert not problems
        else:
            [found] = problems
            assert problem in found
