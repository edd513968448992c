"""Loads named SQL statements from files and renders each of them for both engines.

A `queries.sql` holds statements like this, each with a comment that explains why it is written this way:

    -- name: session_get
    -- Batched: one statement serves all waiting callers.
    select s.id, s.status
    from rows(:batch as b, zone_id text, id text)
    join agent_sessions s on s.zone_id = b.zone_id and s.id = b.id

Only these fragments are rendered differently for the two engines:

| fragment                                 | PostgreSQL                            | SQLite                           |
|------------------------------------------|---------------------------------------|----------------------------------|
| `rows(:p as b, id text, n bigint)`       | `jsonb_array_elements` of arrays      | `json_each` of arrays            |
| `now_ms()`                               | `clock_timestamp()` in milliseconds   | a function that `sqlite.py` adds |
| `octets(t.x)`                            | `octet_length(t.x)`                   | `length(cast(t.x as blob))`      |
| `join each t d on …` (one line)          | a lateral join that is not flattened  | `join t d on …`                  |
| `for update`, `… skip locked`, `for share` | as written                          | removed: there is one writer     |
| `:name`                                  | `$1`                                  | as written                       |

`join each` makes PostgreSQL look up each row of the left side by an index. Without it, PostgreSQL overestimates the
result of a recursive query, whatever the statistics are, and scans the complete table.

A file that selects the same row in many places lists its columns once, `-- columns: id, zone_id, …`, and writes
`columns(s)` for `s.id, s.zone_id, …`; the struct for the rows has its fields in that order. A second list in the same
file has a name, `-- columns cascade: id, …`, and is used as `columns(c as cascade)`.

A condition that several statements repeat can be defined as a phrase. `-- phrase live(a): a.ended_at is null and …` is
used as `live(s)`; a phrase with several lines repeats the `-- phrase live(a):` on each. A phrase may use the phrases
above it.

A package with many statements has additional files, one per subject. The columns and phrases above the first statement
of its `queries.sql` apply to them, too.

A line `-- planned: each time` makes PostgreSQL plan a statement for the values of each call. It is for lists with
nullable filters: the best index depends on the filters, and a single cached plan would scan the zone.

A statement that must differ in other ways is written twice under one name, marked `-- engine: sqlite` and
`-- engine: postgresql`, with a `-- differs:` line that gives the reason. A test limits their number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Literal, TypeVar

import msgspec

Dialect = Literal["sqlite", "postgresql"]
RowT = TypeVar("RowT", bound=tuple[object, ...])
Text = str | None
Int = int | None
Scalar = str | int | None
Param = Scalar | Sequence[tuple[object, ...]]
"""The second form is a batch: the rows that `rows(:batch as b, …)` reads. The generated `queries.pyi` of a package have
the types of its columns."""
MAIN_FILE = "queries.sql"
CHUNK_ROWS = 5_000
"""The maximum number of rows per statement that `chunks` produces."""

_NAME_LINE = re.compile(r"^-- name: (\w+)\s*$")
_PLANNED_LINE = re.compile(r"^-- planned: each time\b")
_ENGINE_LINE = re.compile(r"^-- engine: (sqlite|postgresql)\s*$")
_COLUMNS_LINE = re.compile(r"^-- columns(?: (\w+))?: (.+)$", re.MULTILINE)
_COLUMNS_CALL = re.compile(r"\bcolumns\((\w+)(?: as (\w+))?\)")
_PHRASE_LINE = re.compile(r"^-- phrase (\w+)\((\w+)\): (.+)$", re.MULTILINE)
ROWS_CALL = re.compile(r"\brows\(:(\w+) as (\w+),([^()]*)\)")
PARAM = re.compile(r"(?<![:\w]):([a-z_]\w*)")
_OCTETS_CALL = re.compile(r"\boctets\((\w+\.\w+)\)")
_LOCK = re.compile(r"\bfor (update|share)( skip locked)?\b")
_JOIN_EACH = re.compile(r"\bjoin each (\w+) (\w+) on (.+)$", re.MULTILINE)
_DIALECT_SQL: Mapping[Dialect, tuple[str, str]] = {
    "sqlite": (r"length(cast(\1 as blob))", r"join \1 \2 on \3"),
    "postgresql": (r"octet_length(\1)", r"cross join lateral (select * from \1 \2 where \3 offset 0) \2"),
}
_POSTGRES_NOW = "(extract(epoch from clock_timestamp()) * 1000)::bigint"


@dataclass(frozen=True, slots=True)
class Statement:
    """One named statement, rendered for both engines."""

    name: str
    sqlite: str
    postgresql: str
    param_order: tuple[str, ...]
    """Parameter names in PostgreSQL's order of $1, $2, …"""
    planned_each_time: bool = False
    """Whether PostgreSQL plans the statement for the values of each call instead of caching one plan."""
    sqlite_row: str | None = None
    """A variant for SQLite that writes one row of the batch and is run for each row. It parses no JSON and is 1.5 times
    as fast."""
    row_param_order: tuple[str, ...] = ()
    """For `sqlite_row`: the name of the batch parameter, then the other parameters in the order of their placeholders.
    The placeholders ?1, ?2, … of the row's columns come before them."""

    def __call__(self, **params: Param) -> BoundStatement:
        return BoundStatement(self, params)


@dataclass(frozen=True, slots=True)
class BoundStatement:
    """A statement with its parameters, ready for either engine."""

    statement: Statement
    params: Mapping[str, Param]

    def named_params(self) -> dict[str, str | int | None]:
        return {name: _to_param(value) for name, value in self.params.items()}

    def row_params(self) -> Sequence[tuple[object, ...]]:
        """The parameters of `sqlite_row`: a tuple per row of the batch."""
        batch, *others = self.statement.row_param_order
        rows = self.params[batch]
        if rows is None or isinstance(rows, str | int):
            raise TypeError(f"parameter {batch} of {self.statement.name} must be a batch of rows")
        shared = tuple(self.params[name] for name in others)
        return [row + shared for row in rows] if shared else rows

    def positional_params(self) -> list[str | int | None]:
        return [_to_param(self.params[name]) for name in self.statement.param_order]


class Statements:
    """The statements of one file, as attributes: `Q.session_get(batch=…)`."""

    def __init__(self, statements: Mapping[str, Statement]) -> None:
        self._statements = dict(statements)

    def __getattr__(self, name: str) -> Statement:
        try:
            return self._statements[name]
        except KeyError:
            raise AttributeError(f"no statement named {name!r}") from None

    def __iter__(self) -> Iterator[Statement]:
        return iter(self._statements.values())


def load(package: str, file: str = MAIN_FILE) -> Statements:
    """Read the statements in one file of a package."""
    folder = resources.files(package)
    text = folder.joinpath(file).read_text(encoding="utf-8")
    if file != MAIN_FILE:
        head, _, _ = folder.joinpath(MAIN_FILE).read_text(encoding="utf-8").partition("\n-- name: ")
        text = f"{head}\n{text}"
    return Statements(parse(text))


def parse(text: str) -> dict[str, Statement]:
    columns: dict[str | None, list[str]] = {}
    for columns_line in _COLUMNS_LINE.finditer(text):
        columns.setdefault(columns_line[1], []).extend(name.strip() for name in columns_line[2].split(","))
    text = _COLUMNS_CALL.sub(lambda call: ", ".join(f"{call[1]}.{name}" for name in columns[call[2]]), text)
    text = expand_phrases(text)
    texts: dict[str, dict[Dialect | None, list[str]]] = {}
    planned_each_time: set[str] = set()
    lines: list[str] = []
    name = ""
    for line in text.splitlines():
        if match := _NAME_LINE.match(line):
            name = match[1]
            lines = texts.setdefault(name, {}).setdefault(None, [])
        elif _PLANNED_LINE.match(line):
            planned_each_time.add(name)
        elif match := _ENGINE_LINE.match(line):
            dialect: Dialect = "sqlite" if match[1] == "sqlite" else "postgresql"
            lines = texts[name].setdefault(dialect, [])
        elif name and not line.lstrip().startswith("--"):
            lines.append(line)
    return {
        name: _build_statement(name, texts_by_dialect, name in planned_each_time)
        for name, texts_by_dialect in texts.items()
    }


def expand_phrases(text: str) -> str:
    """Expand phrases, the last one first, because it may use those above it."""
    phrases: dict[tuple[str, str], list[str]] = {}
    for line in _PHRASE_LINE.finditer(text):
        phrases.setdefault((line[1], line[2]), []).append(line[3])
    text = _PHRASE_LINE.sub("", text)
    for (name, alias), lines in reversed(phrases.items()):
        expansion = re.sub(rf"\b{alias}\b", r"\\g<1>", " ".join(lines))
        text = re.sub(rf"\b{name}\((\w+)\)", expansion, text)
    return text


def _build_statement(
    name: str, texts_by_dialect: dict[Dialect | None, list[str]], planned_each_time: bool
) -> Statement:
    def text_for(dialect: Dialect) -> str:
        lines = texts_by_dialect.get(dialect) or texts_by_dialect.get(None) or []
        # `octets` counts bytes: to count characters, PostgreSQL would have to read and decompress the value.
        octets, join_each = _DIALECT_SQL[dialect]
        return _JOIN_EACH.sub(join_each, _OCTETS_CALL.sub(octets, "\n".join(lines))).strip().rstrip(";")

    postgresql, param_order = _render_postgresql(text_for("postgresql"))
    sqlite_text = text_for("sqlite")
    row_sql, row_param_order = _render_sqlite_row(sqlite_text)
    return Statement(
        name, _render_sqlite(sqlite_text), postgresql, param_order, planned_each_time, row_sql, row_param_order
    )


def _render_sqlite(text: str) -> str:
    def expand_rows(match: re.Match[str]) -> str:
        columns = [column.split()[0] for column in match[3].split(",")]
        values = ", ".join(f"json_extract(value, '$[{i}]') as {column}" for i, column in enumerate(columns))
        return f"(select {values} from json_each(:{match[1]})) as {match[2]}"  # noqa: S608 - our own text

    return _LOCK.sub("", ROWS_CALL.sub(expand_rows, text)).strip()


def _render_sqlite_row(text: str) -> tuple[str | None, tuple[str, ...]]:
    """Render a statement that writes the rows of one batch as a statement that writes one row. None for any other
    statement."""
    batches = list(ROWS_CALL.finditer(text))
    if len(batches) != 1 or text.startswith("select"):
        return None, ()
    batch = batches[0]
    columns = [column.split()[0] for column in batch[3].split(",")]
    param_order = [batch[1]]

    def placeholder(match: re.Match[str]) -> str:
        if match[1] not in param_order:
            param_order.append(match[1])
        return f"?{len(columns) + param_order.index(match[1])}"

    row = ", ".join(f"?{i + 1} as {column}" for i, column in enumerate(columns))
    before, after = PARAM.sub(placeholder, text[: batch.start()]), PARAM.sub(placeholder, text[batch.end() :])
    return f"{before}(select {row}) as {batch[2]}{after}", tuple(param_order)


def _render_postgresql(text: str) -> tuple[str, tuple[str, ...]]:
    def expand_rows(match: re.Match[str]) -> str:
        values = []
        for i, column in enumerate(match[3].split(",")):
            column_name, column_type = column.split()
            values.append(
                f"e.v->>{i} as {column_name}"
                if column_type == "text"
                else f"(e.v->>{i})::{column_type} as {column_name}"
            )
        # `offset 0` keeps `->>` inside the subquery. `->>` is not leakproof: under row-level security, PostgreSQL does
        # not use an index for a condition that contains it, but it does for a condition on the result.
        elements = f"jsonb_array_elements(:{match[1]}::jsonb) as e(v) offset 0"
        return f"(select {', '.join(values)} from {elements}) as {match[2]}"  # noqa: S608 - our own text

    param_order: list[str] = []

    def placeholder(match: re.Match[str]) -> str:
        if match[1] not in param_order:
            param_order.append(match[1])
        return f"${param_order.index(match[1]) + 1}"

    text = ROWS_CALL.sub(expand_rows, text).replace("now_ms()", _POSTGRES_NOW)
    return PARAM.sub(placeholder, text), tuple(param_order)


def chunks(batch: Sequence[RowT]) -> Iterator[list[RowT]]:
    """Split a batch into parts small enough that a statement stays well within its timeout."""
    for start in range(0, len(batch), CHUNK_ROWS):
        yield [*batch[start : start + CHUNK_ROWS]]


def _to_param(value: Param) -> str | int | None:
    return value if value is None or isinstance(value, str | int) else msgspec.json.encode(value).decode()
