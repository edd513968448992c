"""Writes the modules of `sync`, the client for code without a loop, from the classes that need one.

`make sdk`, or `python -m quarterdeck.sdk.generate`. So nothing is written twice and nothing can be forgotten: a test
compares each file with what this would write. Each class becomes one that holds the other and a loop in a thread:

| there                            | here                                                          |
|----------------------------------|---------------------------------------------------------------|
| a coroutine                      | a method that waits for it                                    |
| an asynchronous iterator         | an iterator that waits for each of its items                  |
| an attribute of such a class     | the same of the class that was made of it                     |
| a method that gives such a class | a method that gives the class that was made of it             |
| a context                        | a context                                                     |
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = (
    *("sessions", "services", "invocations", "delegations", "events", "zones"),
    *("agents", "tasks", "members", "coordinator", "costs", "webhooks"),
    "client",
)
TARGET = HERE / "sync"
WIDTH = 120
HEAD = '''\
"""Written by `make sdk` from `sdk/{source}.py`: change that, or `generate`, and not this."""

from __future__ import annotations
'''
ITERATORS = ("AsyncIterator", "AsyncGenerator")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def main() -> None:
    for name, text in generated().items():
        (TARGET / f"{name}.py").write_text(text, encoding="utf-8")


def generated() -> dict[str, str]:
    """The text of every file, by the module it is made from."""
    trees = {name: ast.parse((HERE / f"{name}.py").read_text(encoding="utf-8")) for name in SOURCES}
    classes = {name: [*_public(tree)] for name, tree in trees.items()}
    known = frozenset(node.name for nodes in classes.values() for node in nodes)
    return {name: _module(name, tree, classes[name], known) for name, tree in trees.items()}


def _public(tree: ast.Module) -> Iterator[ast.ClassDef]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node


def _module(name: str, tree: ast.Module, nodes: Sequence[ast.ClassDef], known: frozenset[str]) -> str:
    body = "\n\n\n".join(_Facade(name, node, known).text() for node in nodes)
    head = HEAD.format(source=name)
    return f"{head}\n{_imports(name, tree, body, {node.name for node in nodes})}\n\n\n{body}\n"


class _Facade:
    """One class of the file."""

    def __init__(self, module: str, node: ast.ClassDef, known: frozenset[str]) -> None:
        self._inner = f"{module}.{node.name}"
        self._node = node
        self._known = known

    def text(self) -> str:
        parts = [self._init(), *(self._method(function) for function in self._methods())]
        if self._is_context():
            parts.append(_context())
        head = [f"class {self._node.name}:"]
        if docstring := ast.get_docstring(self._node, clean=False):
            head.append(f'    """{docstring}"""\n')
        return "\n".join([*head, "\n\n".join(parts)])

    def _init(self) -> str:
        lines = [
            f"    def __init__(self, inner: {self._inner}, background: Background) -> None:",
            "        self._inner = inner",
            "        self._background = background",
        ]
        lines += [f"        self.{name} = {kind}(inner.{name}, background)" for name, kind in self._parts()]
        return "\n".join(lines)

    def _parts(self) -> Iterator[tuple[str, str]]:
        for node in self._node.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield node.target.id, ast.unparse(node.annotation)

    def _methods(self) -> Iterator[Function]:
        for node in self._node.body:
            if isinstance(node, Function) and not node.name.startswith("_"):
                yield node

    def _is_context(self) -> bool:
        return any(isinstance(node, Function) and node.name == "__aenter__" for node in self._node.body)

    def _method(self, function: Function) -> str:
        marks = [ast.unparse(mark) for mark in function.decorator_list]
        lines = [f"    @{mark}" for mark in marks]
        lines.append(_signature(function, self._answer(function)))
        if docstring := ast.get_docstring(function, clean=False):
            lines.append(f'        """{docstring}"""')
        return "\n".join([*lines, *self._body(function, marks)])

    def _answer(self, function: Function) -> str:
        item = _item_of(function)
        return f"Iterator[{item}]" if item else ast.unparse(function.returns or ast.Constant(None))

    def _body(self, function: Function, marks: Sequence[str]) -> list[str]:
        if "property" in marks:
            return [f"        return self._inner.{function.name}"]
        answer = self._answer(function)
        called = _arguments(function)
        if "classmethod" in marks:
            return _calls("return cls(", f"{self._inner}.{function.name}(", called, ", Background())")
        inner = f"self._inner.{function.name}("
        if _item_of(function):
            return _calls("return self._background.iterate(", inner, called, ")")
        if isinstance(function, ast.FunctionDef) and answer in self._known:
            return _calls(f"return {answer}(", inner, called, ", self._background)")
        if isinstance(function, ast.FunctionDef):
            return _calls("return ", inner, called, "")
        if function.name == "close":
            return _calls("self._background.finish(", inner, called, ")")
        returns = "" if answer == "None" else "return "
        return _calls(f"{returns}self._background.run(", inner, called, ")")


def _item_of(function: Function) -> str | None:
    """Of what it is an asynchronous iterator, if it is one."""
    found = function.returns
    if isinstance(found, ast.Subscript) and isinstance(found.value, ast.Name) and found.value.id in ITERATORS:
        return ast.unparse(found.slice)
    return None


def _arguments(function: Function) -> list[str]:
    """As they are passed on."""
    arguments = function.args
    own = [argument.arg for argument in arguments.args[1:]]
    own += [f"{argument.arg}={argument.arg}" for argument in arguments.kwonlyargs]
    return own + ([f"**{arguments.kwarg.arg}"] if arguments.kwarg else [])


def _signature(function: Function, answer: str) -> str:
    parameters = [*_parameters(function.args)]
    head, tail = f"    def {function.name}(", f") -> {answer}:"
    line = head + ", ".join(parameters) + tail
    if len(line) <= WIDTH:
        return line
    inside = " " * 8 + ", ".join(parameters)
    if len(inside) <= WIDTH:
        return f"{head}\n{inside}\n    {tail}"
    each = "".join(f"        {parameter},\n" for parameter in parameters)
    return f"{head}\n{each}    {tail}"


def _parameters(arguments: ast.arguments) -> Iterator[str]:
    required = len(arguments.args) - len(arguments.defaults)
    for place, argument in enumerate(arguments.args):
        default = arguments.defaults[place - required] if place >= required else None
        yield _parameter(argument, default)
    if arguments.kwonlyargs:
        yield "*"
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _parameter(argument, default)
    if arguments.kwarg:
        yield f"**{_parameter(arguments.kwarg, None)}"


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    text = argument.arg
    if argument.annotation is not None:
        text += f": {_spelt(argument.annotation)}"
    return text if default is None else f"{text} = {_spelt(default)}"


def _spelt(node: ast.expr) -> str:
    """With the formatter's quotation marks. None of ours stands within another."""
    return ast.unparse(node).replace("'", '"')


def _calls(outer: str, inner: str, arguments: Sequence[str], tail: str) -> list[str]:
    """One call within another, folded as the formatter folds."""
    line = f"        {outer}{inner}{', '.join(arguments)}){tail}"
    if len(line) <= WIDTH:
        return [line]
    line = f"            {inner}{', '.join(arguments)})"
    if len(line) <= WIDTH:
        return [f"        {outer}", line, f"        {tail}"]
    line = " " * 16 + ", ".join(arguments)
    lines = [line] if len(line) <= WIDTH else [f"{' ' * 16}{argument}," for argument in arguments]
    return [f"        {outer}", f"            {inner}", *lines, "            )", f"        {tail}"]


def _context() -> str:
    return """\
    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, wrong: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()"""


def _imports(name: str, tree: ast.Module, body: str, own_names: set[str]) -> str:
    """What the text of the classes names, from where their source has it; of the classes of other sources, those that
    were made of them."""
    named = {node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)} - own_names
    found: dict[str, set[str]] = {"quarterdeck.sdk": {name}, "quarterdeck.sdk.loop_thread": {"Background"}}
    if "Iterator" in named:
        found["collections.abc"] = {"Iterator"}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module != "__future__":
            wanted = {alias.name for alias in node.names} & named
            if wanted:
                found.setdefault(_made(node.module), set()).update(wanted)
    own = {module for module in found if module.startswith("quarterdeck")}
    groups = [group for group in (sorted(set(found) - own), sorted(own)) if group]
    return "\n\n".join("\n".join(_import(module, found[module]) for module in group) for group in groups)


def _made(module: str) -> str:
    package, _, last = module.rpartition(".")
    return f"{package}.sync.{last}" if package == "quarterdeck.sdk" and last in SOURCES else module


def _import(module: str, names: Iterable[str]) -> str:
    line = f"from {module} import {', '.join(sorted(names))}"
    if len(line) <= WIDTH:
        return line
    return f"from {module} import (\n" + "".join(f"    {name},\n" for name in sorted(names)) + ")"


if __name__ == "__main__":
    main()
