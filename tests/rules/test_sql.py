"""SQL files for two engines: how they are parsed, and how each fragment is rendered per engine."""

from __future__ import annotations

import re
from importlib import import_module

import msgspec
import pytest

from quarterdeck.core.audit_seal import Seal
from quarterdeck.domain.agents.model import Heartbeat
from quarterdeck.domain.api_keys.model import ApiKey
from quarterdeck.domain.delegations.model import Edge, GraphEdge
from quarterdeck.domain.delegations.queries import Q as DELEGATIONS
from quarterdeck.domain.fleets.model.rows import Fleet, Member, Message, MonitorConfig, MonitorRuntime, Placement
from quarterdeck.domain.sessions.model import Cascade, Session, TreeNode
from quarterdeck.domain.sessions.queries import Q as SESSIONS
from quarterdeck.domain.tasks.model.rows import Content, Task
from quarterdeck.domain.webhooks.model import Delivery, Endpoint
from quarterdeck.domain.zones.model import RoleAssignment, Zone
from quarterdeck.domain.zones.queries import Q as ZONES
from quarterdeck.engine.event_log import Event
from quarterdeck.engine.queries import Q as ENGINE
from quarterdeck.store.postgres import BEGIN, COMMIT, LOCK_KEY, PING, ROLLBACK
from quarterdeck.store.sql import Statement, Statements, parse
from tests.support.source import ROOT

RENAMED_TASK_COLUMNS = {
    "turn": "rank",
    "waits": "waits_for",
    "depends": "dependency_count",
    "unmet": "unmet_dependencies",
    "spreads": "dependents_pending",
}
PACKAGES = sorted(
    path.parent.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src" / "quarterdeck").rglob("queries.py")
)


def parse_one(text: str) -> Statement:
    [statement] = parse(f"-- name: it\n{text}").values()
    return statement


def collapse_whitespace(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


# -- parsing


def test_file_is_split_into_named_statements_without_comments() -> None:
    found = parse("""
-- A comment before the first name is ignored.
-- name: first
-- Why it is written this way.
select 1
-- in the middle
from here;

-- name: second
-- Another reason.
select 2;
""")
    assert {name: collapse_whitespace(statement.sqlite) for name, statement in found.items()} == {
        "first": "select 1 from here",
        "second": "select 2",
    }
    assert found["first"].postgresql == found["first"].sqlite


def test_columns_expand_for_each_alias() -> None:
    text = "-- columns: id, zone_id\n-- columns: name\n-- name: it\nselect columns(a), columns(b_2) from x;"
    assert parse(text)["it"].sqlite == "select a.id, a.zone_id, a.name, b_2.id, b_2.zone_id, b_2.name from x"


def test_named_column_lists_expand_separately() -> None:
    found = parse("""
-- columns: id, zone_id
-- columns member: id, parent_id
--
-- columns cascade: target_id
-- columns member: held

-- name: both
select columns(a), columns(b as member), columns(c as cascade) from x;
""")
    assert found["both"].sqlite == "select a.id, a.zone_id, b.id, b.parent_id, b.held, c.target_id from x"


def test_undefined_column_list_raises_key_error() -> None:
    with pytest.raises(KeyError, match="member"):
        parse("-- columns: id\n-- name: it\nselect columns(a as member) from x;")


def test_phrase_expands_for_each_alias_and_may_use_earlier_phrases() -> None:
    found = parse("""
-- phrase live(a): a.ended_at is null
-- phrase led(s): exists (select 1 from x
-- phrase led(s): where x.id = s.x and live(x))

-- name: both
select 1 from s, t where live(s) and led(t);
""")
    assert found["both"].sqlite == (
        "select 1 from s, t where s.ended_at is null and "
        "exists (select 1 from x where x.id = t.x and x.ended_at is null)"
    )


def test_statement_written_per_engine_keeps_both_texts() -> None:
    statement = parse_one(
        "-- engine: sqlite\nselect 's' where 1 = :a;\n-- engine: postgresql\nselect 'p' where 1 = :b;"
    )
    assert statement.sqlite == "select 's' where 1 = :a"
    assert statement.postgresql == "select 'p' where 1 = $1"
    assert statement.param_order == ("b",)


def test_unknown_statement_raises_an_error_with_its_name() -> None:
    with pytest.raises(AttributeError, match="no_such_thing"):
        getattr(ENGINE, "no_such_thing")  # noqa: B009 - mypy refuses the attribute


# -- fragments


def test_parameters_are_numbered_in_order_of_first_use_and_may_repeat() -> None:
    statement = parse_one("select :b, :a, :b, x::text, 'a:b' from t where y = :a_1;")
    assert statement.postgresql == "select $1, $2, $1, x::text, 'a:b' from t where y = $3"
    assert statement.param_order == ("b", "a", "a_1")
    assert statement(a=1, b="x", a_1=None).positional_params() == ["x", 1, None]
    assert statement(a=1, b="x", a_1=None).named_params() == {"a": 1, "b": "x", "a_1": None}


def test_missing_parameter_raises_key_error() -> None:
    with pytest.raises(KeyError, match="b"):
        parse_one("select :a, :b;")(a=1).positional_params()


def test_batch_is_one_json_parameter_that_each_engine_expands_to_rows() -> None:
    statement = parse_one("select b.id from rows(:batch as b, id text, n bigint) where n > :least;")
    assert statement.postgresql == (
        "select b.id from (select e.v->>0 as id, (e.v->>1)::bigint as n "
        "from jsonb_array_elements($1::jsonb) as e(v) offset 0) as b where n > $2"
    )
    assert statement.sqlite == (
        "select b.id from (select json_extract(value, '$[0]') as id, json_extract(value, '$[1]') as n "
        "from json_each(:batch)) as b where n > :least"
    )
    bound = statement(batch=[("ü", 1), (None, 2)], least=0)
    assert bound.positional_params() == ['[["ü",1],[null,2]]', 0]
    assert bound.named_params() == {"batch": '[["ü",1],[null,2]]', "least": 0}


def test_rows_fragment_may_span_several_lines() -> None:
    statement = parse_one("insert into t select * from rows(:batch as b, id text,\n    n bigint,\n    s smallint);")
    assert "(e.v->>2)::smallint as s" in statement.postgresql
    assert "json_extract(value, '$[2]') as s" in statement.sqlite


@pytest.mark.parametrize("lock", ["for update", "for update skip locked", "for share"])
def test_row_locks_are_rendered_for_postgresql_only(lock: str) -> None:
    statement = parse_one(f"select 1 from t where a = :a {lock};")
    assert statement.postgresql == f"select 1 from t where a = $1 {lock}"
    assert statement.sqlite == "select 1 from t where a = :a"


def test_now_ms_reads_the_clock_of_the_database() -> None:
    statement = parse_one("select now_ms();")
    assert "clock_timestamp()" in statement.postgresql
    assert statement.sqlite == "select now_ms()"


def test_octets_renders_the_byte_length_function_of_each_engine() -> None:
    statement = parse_one("select octets(t.body) + octets(t.more) from t;")
    assert statement.postgresql == "select octet_length(t.body) + octet_length(t.more) from t"
    assert statement.sqlite == "select length(cast(t.body as blob)) + length(cast(t.more as blob)) from t"


def test_join_each_is_rendered_as_lateral_join_for_postgresql() -> None:
    statement = parse_one("select d.x from a\njoin each t d on d.id = a.id and d.met = 0\nlimit :n;")
    lateral = "cross join lateral (select * from t d where d.id = a.id and d.met = 0 offset 0) d"
    assert statement.postgresql == f"select d.x from a\n{lateral}\nlimit $1"
    assert statement.sqlite == "select d.x from a\njoin t d on d.id = a.id and d.met = 0\nlimit :n"


def test_sqlite_batch_write_binds_each_row_followed_by_the_other_parameters() -> None:
    statement = parse_one(
        "update t set a = :now, b = r.x from rows(:batch as r, x text, y bigint) where c = r.y and d = :d;"
    )
    assert statement.sqlite_row == (
        "update t set a = ?3, b = r.x from (select ?1 as x, ?2 as y) as r where c = r.y and d = ?4"
    )
    bound = statement(batch=[("p", 1), ("q", 2)], now=7, d="e")
    assert bound.row_params() == [("p", 1, 7, "e"), ("q", 2, 7, "e")]


def test_sqlite_read_or_write_without_a_batch_has_no_row_form() -> None:
    assert parse_one("select 1 from rows(:batch as b, id text);").sqlite_row is None
    assert parse_one("update t set a = :a;").sqlite_row is None


# -- all statements


def all_statements() -> list[Statement]:
    """The statements of every package that has a `queries.py`."""
    modules = [import_module(f"{parent.replace('/', '.')}.queries") for parent in PACKAGES]
    files = [value for module in modules for value in vars(module).values() if isinstance(value, Statements)]
    return [statement for file in files for statement in file]


def test_statement_names_are_unique_across_components() -> None:
    # A connection prepares statements by name, across all components.
    names = [statement.name for statement in [*all_statements(), BEGIN, COMMIT, LOCK_KEY, PING, ROLLBACK]]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("statement", all_statements(), ids=lambda statement: statement.name)
def test_rendered_statements_contain_no_fragments(statement: Statement) -> None:
    for text in (statement.sqlite, statement.postgresql, statement.sqlite_row or ""):
        assert not re.search(r"\brows\(|\bcolumns\(|\boctets\(|--", text)
        assert not text.endswith(";")
    assert not re.search(r"(?<!:):[a-z]|now_ms", statement.postgresql)
    assert not re.search(r"\bfor (update|share)\b", statement.sqlite)
    assert set(re.findall(r"\$(\d+)", statement.postgresql)) == {str(i + 1) for i in range(len(statement.param_order))}


@pytest.mark.parametrize(
    ("statements", "statement", "struct"),
    [
        (ENGINE, "log_tail", Event),
        (ZONES, "zone_list", Zone),
        (SESSIONS, "sessions_get", Session),
        (SESSIONS, "sessions_insert", Session),
        (SESSIONS, "session_nodes_of_subtrees", TreeNode),
        (SESSIONS, "session_nodes_of_lineages", TreeNode),
        (SESSIONS, "session_nodes_of_zones", TreeNode),
        (SESSIONS, "session_nodes_of_cascade", TreeNode),
        (SESSIONS, "cascades_open", Cascade),
        (SESSIONS, "cascade_get", Cascade),
        (DELEGATIONS, "delegations_get", Edge),
        (DELEGATIONS, "delegations_insert", Edge),
        (DELEGATIONS, "delegations_to_revoke", GraphEdge),
        (DELEGATIONS, "delegations_of_sessions", GraphEdge),
        (ENGINE, "seal_newest", Seal),
    ],
)
def test_select_list_has_the_field_order_of_its_struct(
    statements: Statements, statement: str, struct: type[msgspec.Struct]
) -> None:
    text = collapse_whitespace(getattr(statements, statement).sqlite)
    # The longest list: the others belong to subqueries and recursive terms and contain only keys.
    columns = max(re.findall(r"select ([a-z_., ]+?) from", text), key=len)
    names = [name.partition(".")[2] for name in columns.split(", ")]
    extra_columns = {
        "session_nodes_of_subtrees": (["top"], []),
        "session_nodes_of_cascade": ([], ["termination_reason"]),
    }
    first, last = extra_columns.get(statement, ([], []))
    assert names == [*first, *struct.__struct_fields__, *last]


@pytest.mark.parametrize(
    ("component", "name", "struct"),
    [
        ("agents", "heartbeat", Heartbeat),
        ("api_keys", "", ApiKey),
        ("fleets", "", Fleet),
        ("fleets", "member", Member),
        ("fleets", "message", Message),
        ("fleets", "placement", Placement),
        ("fleets", "config", MonitorConfig),
        ("fleets", "runtime", MonitorRuntime),
        ("tasks", "", Task),
        ("tasks", "content", Content),
        ("webhooks", "", Endpoint),
        ("webhooks", "delivery", Delivery),
        ("zones", "", Zone),
        ("zones", "member", RoleAssignment),
    ],
)
def test_column_list_has_the_field_order_of_its_struct(component: str, name: str, struct: type[msgspec.Struct]) -> None:
    text = (ROOT / "src/quarterdeck/domain" / component / "queries.sql").read_text()
    lines = re.findall(rf"^-- {f'columns {name}'.strip()}: (.*)$", text, re.MULTILINE)
    columns = ", ".join(lines).split(", ")
    assert [RENAMED_TASK_COLUMNS.get(column, column) for column in columns] == [*struct.__struct_fields__]


def test_cascade_insert_sets_every_column_except_those_of_its_progress() -> None:
    [statement] = [statement for statement in SESSIONS if statement.name == "cascade_insert"]
    params = set(statement.param_order)
    assert params == set(Cascade.__struct_fields__) - {"settled", "finished_at"}
