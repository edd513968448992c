"""Writes the modules of `sync`, the client for code without a loop, from the classes that need one.

`make sdk`, or `python tools/generate_sync_sdk.py`. So nothing is written twice and nothing can be forgotten: a test
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

SDK_DIR = Path(__file__).resolve().parents[1] / "src" / "quarterdeck" / "sdk"
SOURCES = (
    *("sessions", "services", "invocations", "delegations", "events", "zones"),
    *("agents", "tasks", "members", "coordinator", "costs", "webhooks"),
    "client",
)
TARGET = SDK_DIR / "sync"
WIDTH = 120
FILE_HEADER = '''\
"""Written by `make sdk` from `sdk/{source}.py`: do not edit."""

from __future__ import annotations
'''
ITERATORS = ("AsyncIterator", "AsyncGenerator")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def main() -> None:
    for name, text in generate_files().items():
        (TARGET / f"{name}.py").write_text(text, encoding="utf-8")


def generate_files() -> dict[str, str]:
    """The text of every file, by the module it is made from."""
    trees = {name: ast.parse((SDK_DIR / f"{name}.py").read_text(encoding="utf-8")) for name in SOURCES}
    classes = {name: [*_public_classes(tree)] for name, tree in trees.items()}
    class_names = frozenset(node.name for nodes in classes.values() for node in nodes)
    return {name: _render_module(name, tree, classes[name], class_names) for name, tree in trees.items()}


def _public_classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node


def _render_module(
    name: str, tree: ast.Module, class_nodes: Sequence[ast.ClassDef], class_names: frozenset[str]
) -> str:
    body = "\n\n\n".join(_SyncClass(name, node, class_names).render() for node in class_nodes)
    header = FILE_HEADER.format(source=name)
    return f"{header}\n{_render_imports(name, tree, body, {node.name for node in class_nodes})}\n\n\n{body}\n"


class _SyncClass:
    """One class of the file."""

    def __init__(self, module: str, node: ast.ClassDef, class_names: frozenset[str]) -> None:
        self._inner = f"{module}.{node.name}"
        self._node = node
        self._class_names = class_names

    def render(self) -> str:
        parts = [self._render_init(), *(self._render_method(function) for function in self._public_methods())]
        if self._is_context_manager():
            parts.append(_render_context_manager())
        header = [f"class {self._node.name}:"]
        if docstring := ast.get_docstring(self._node, clean=False):
            header.append(f'    """{docstring}"""\n')
        return "\n".join([*header, "\n\n".join(parts)])

    def _render_init(self) -> str:
        lines = [
            f"    def __init__(self, inner: {self._inner}, loop_thread: LoopThread) -> None:",
            "        self._inner = inner",
            "        self._loop_thread = loop_thread",
        ]
        lines += [
            f"        self.{name} = {kind}(inner.{name}, loop_thread)" for name, kind in self._resource_attributes()
        ]
        return "\n".join(lines)

    def _resource_attributes(self) -> Iterator[tuple[str, str]]:
        for node in self._node.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield node.target.id, ast.unparse(node.annotation)

    def _public_methods(self) -> Iterator[Function]:
        for node in self._node.body:
            if isinstance(node, Function) and not node.name.startswith("_"):
                yield node

    def _is_context_manager(self) -> bool:
        return any(isinstance(node, Function) and node.name == "__aenter__" for node in self._node.body)

    def _render_method(self, function: Function) -> str:
        decorators = [ast.unparse(decorator) for decorator in function.decorator_list]
        lines = [f"    @{decorator}" for decorator in decorators]
        lines.append(_render_signature(function, self._return_type(function)))
        if docstring := ast.get_docstring(function, clean=False):
            lines.append(f'        """{docstring}"""')
        return "\n".join([*lines, *self._render_body(function, decorators)])

    def _return_type(self, function: Function) -> str:
        item = _iterated_type(function)
        return f"Iterator[{item}]" if item else ast.unparse(function.returns or ast.Constant(None))

    def _render_body(self, function: Function, decorators: Sequence[str]) -> list[str]:
        if "property" in decorators:
            return [f"        return self._inner.{function.name}"]
        return_type = self._return_type(function)
        arguments = _forwarded_arguments(function)
        if "classmethod" in decorators:
            return _render_call("return cls(", f"{self._inner}.{function.name}(", arguments, ", LoopThread())")
        inner = f"self._inner.{function.name}("
        if _iterated_type(function):
            return _render_call("return self._loop_thread.iterate(", inner, arguments, ")")
        if isinstance(function, ast.FunctionDef) and return_type in self._class_names:
            return _render_call(f"return {return_type}(", inner, arguments, ", self._loop_thread)")
        if isinstance(function, ast.FunctionDef):
            return _render_call("return ", inner, arguments, "")
        if function.name == "close":
            return _render_call("self._loop_thread.finish(", inner, arguments, ")")
        return_keyword = "" if return_type == "None" else "return "
        return _render_call(f"{return_keyword}self._loop_thread.run(", inner, arguments, ")")


def _iterated_type(function: Function) -> str | None:
    """Of what it is an asynchronous iterator, if it is one."""
    annotation = function.returns
    if (
        isinstance(annotation, ast.Subscript)
        and isinstance(annotation.value, ast.Name)
        and annotation.value.id in ITERATORS
    ):
        return ast.unparse(annotation.slice)
    return None


def _forwarded_arguments(function: Function) -> list[str]:
    """As they are passed on."""
    arguments = function.args
    forwarded = [argument.arg for argument in arguments.args[1:]]
    forwarded += [f"{argument.arg}={argument.arg}" for argument in arguments.kwonlyargs]
    return forwarded + ([f"**{arguments.kwarg.arg}"] if arguments.kwarg else [])


def _render_signature(function: Function, return_type: str) -> str:
    parameters = [*_render_parameters(function.args)]
    head, tail = f"    def {function.name}(", f") -> {return_type}:"
    line = head + ", ".join(parameters) + tail
    if len(line) <= WIDTH:
        return line
    parameter_line = " " * 8 + ", ".join(parameters)
    if len(parameter_line) <= WIDTH:
        return f"{head}\n{parameter_line}\n    {tail}"
    parameter_lines = "".join(f"        {parameter},\n" for parameter in parameters)
    return f"{head}\n{parameter_lines}    {tail}"


def _render_parameters(arguments: ast.arguments) -> Iterator[str]:
    required = len(arguments.args) - len(arguments.defaults)
    for index, argument in enumerate(arguments.args):
        default = arguments.defaults[index - required] if index >= required else None
        yield _render_parameter(argument, default)
    if arguments.kwonlyargs:
        yield "*"
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _render_parameter(argument, default)
    if arguments.kwarg:
        yield f"**{_render_parameter(arguments.kwarg, None)}"


def _render_parameter(argument: ast.arg, default: ast.expr | None) -> str:
    text = argument.arg
    if argument.annotation is not None:
        text += f": {_unparse(argument.annotation)}"
    return text if default is None else f"{text} = {_unparse(default)}"


def _unparse(node: ast.expr) -> str:
    """With the formatter's quotation marks. None of ours stands within another."""
    return ast.unparse(node).replace("'", '"')


def _render_call(outer: str, inner: str, arguments: Sequence[str], tail: str) -> list[str]:
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


def _render_context_manager() -> str:
    return """\
    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()"""


def _render_imports(name: str, tree: ast.Module, body: str, class_names: set[str]) -> str:
    """What the text of the classes names, from where their source has it; of the classes of other sources, those that
    were made of them."""
    used_names = {node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)} - class_names
    imports: dict[str, set[str]] = {"quarterdeck.sdk": {name}, "quarterdeck.sdk.loop_thread": {"LoopThread"}}
    if "Iterator" in used_names:
        imports["collections.abc"] = {"Iterator"}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module != "__future__":
            needed = {alias.name for alias in node.names} & used_names
            if needed:
                imports.setdefault(_generated_module(node.module), set()).update(needed)
    first_party = {module for module in imports if module.startswith("quarterdeck")}
    groups = [group for group in (sorted(set(imports) - first_party), sorted(first_party)) if group]
    return "\n\n".join("\n".join(_render_import(module, imports[module]) for module in group) for group in groups)


def _generated_module(module: str) -> str:
    package, _, last = module.rpartition(".")
    return f"{package}.sync.{last}" if package == "quarterdeck.sdk" and last in SOURCES else module


def _render_import(module: str, names: Iterable[str]) -> str:
    line = f"from {module} import {', '.join(sorted(names))}"
    if len(line) <= WIDTH:
        return line
    return f"from {module} import (\n" + "".join(f"    {name},\n" for name in sorted(names)) + ")"


if __name__ == "__main__":
    main()
