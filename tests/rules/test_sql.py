"""One text for two engines: how it is read, and how each fragment is spelt."""

from __future__ import annotations

import re
from itertools import chain

import msgspec
import pytest

from quarterdeck.core.audit_seal import Seal
from quarterdeck.domain.api_keys.queries import Q as KEYS
from quarterdeck.domain.delegations.model import Edge, GraphEdge
from quarterdeck.domain.delegations.queries import Q as DELEGATIONS
from quarterdeck.domain.services.queries import Q as SERVICES
from quarterdeck.domain.sessions.model import Cascade, Session, TreeNode
from quarterdeck.domain.sessions.queries import Q as SESSIONS
from quarterdeck.domain.zones.model import Zone
from quarterdeck.domain.zones.queries import Q as ZONES
from quarterdeck.engine.event_log import Event
from quarterdeck.engine.queries import Q as ENGINE
from quarterdeck.maintenance.history_checker.queries import Q as HISTORY
from quarterdeck.maintenance.queries import FLEET_QUERIES as UPKEEP_FLEETS, Q as UPKEEP
from quarterdeck.store.postgres import BEGIN, COMMIT, LOCK_KEY, PING, ROLLBACK
from quarterdeck.store.sql import Statement, Statements, parse

ALL = {
    "engine": ENGINE,
    "zones": ZONES,
    "sessions": SESSIONS,
    "keys": KEYS,
    "services": SERVICES,
    "delegations": DELEGATIONS,
    "upkeep": UPKEEP,
    "upkeep fleets": UPKEEP_FLEETS,
    "history": HISTORY,
}


def one(text: str) -> Statement:
    [statement] = parse(f"-- name: it\n{text}").values()
    return statement


def squeezed(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


# -- reading the file


def test_a_file_is_split_into_named_statements_without_their_comments() -> None:
    found = parse("""
-- A word before the first name belongs to nobody.
-- name: first
-- Why it is written this way.
select 1
-- in the midst
from here;

-- name: second
-- Another reason.
select 2;
""")
    assert {name: squeezed(statement.sqlite) for name, statement in found.items()} == {
        "first": "select 1 from here",
        "second": "select 2",
    }
    assert found["first"].postgresql == found["first"].sqlite


def test_columns_are_named_once_and_written_out_for_each_alias() -> None:
    text = "-- columns: id, zone_id\n-- columns: name\n-- name: it\nselect columns(a), columns(b_2) from x;"
    assert parse(text)["it"].sqlite == "select a.id, a.zone_id, a.name, b_2.id, b_2.zone_id, b_2.name from x"


def test_a_second_row_of_a_file_has_a_name_and_columns_of_its_own() -> None:
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


def test_columns_that_nobody_has_named_are_an_error() -> None:
    with pytest.raises(KeyError, match="member"):
        parse("-- columns: id\n-- name: it\nselect columns(a as member) from x;")


def test_a_phrase_is_said_once_and_written_out_for_each_alias_and_may_use_those_above_it() -> None:
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


def test_a_statement_written_per_engine_gives_each_its_own() -> None:
    statement = one("-- engine: sqlite\nselect 's' where 1 = :a;\n-- engine: postgresql\nselect 'p' where 1 = :b;")
    assert statement.sqlite == "select 's' where 1 = :a"
    assert statement.postgresql == "select 'p' where 1 = $1"
    assert statement.param_order == ("b",)


def test_a_statement_that_does_not_exist_is_an_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="no_such_thing"):
        ENGINE.no_such_thing  # noqa: B018 - to look it up is what fails


# -- fragments


def test_parameters_are_numbered_in_order_of_first_use_and_may_repeat() -> None:
    statement = one("select :b, :a, :b, x::text, 'a:b' from t where y = :a_1;")
    assert statement.postgresql == "select $1, $2, $1, x::text, 'a:b' from t where y = $3"
    assert statement.param_order == ("b", "a", "a_1")
    assert statement(a=1, b="x", a_1=None).positional_params() == ["x", 1, None]
    assert statement(a=1, b="x", a_1=None).named_params() == {"a": 1, "b": "x", "a_1": None}


def test_a_parameter_that_was_forgotten_is_an_error() -> None:
    with pytest.raises(KeyError, match="b"):
        one("select :a, :b;")(a=1).positional_params()


def test_a_batch_is_one_json_parameter_that_each_engine_expands_to_rows() -> None:
    statement = one("select b.id from rows(:batch as b, id text, n bigint) where n > :least;")
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


def test_rows_may_be_written_over_several_lines() -> None:
    statement = one("insert into t select * from rows(:batch as b, id text,\n    n bigint,\n    s smallint);")
    assert "(e.v->>2)::smallint as s" in statement.postgresql
    assert "json_extract(value, '$[2]') as s" in statement.sqlite


@pytest.mark.parametrize("lock", ["for update", "for update skip locked", "for share"])
def test_locks_are_postgresqls_and_sqlite_needs_none(lock: str) -> None:
    statement = one(f"select 1 from t where a = :a {lock};")
    assert statement.postgresql == f"select 1 from t where a = $1 {lock}"
    assert statement.sqlite == "select 1 from t where a = :a"


def test_the_clock_is_the_databases() -> None:
    statement = one("select now_ms();")
    assert "clock_timestamp()" in statement.postgresql
    assert statement.sqlite == "select now_ms()"


def test_texts_are_measured_in_bytes_by_what_each_engine_has_for_it() -> None:
    statement = one("select octets(t.said) + octets(t.more) from t;")
    assert statement.postgresql == "select octet_length(t.said) + octet_length(t.more) from t"
    assert statement.sqlite == "select length(cast(t.said as blob)) + length(cast(t.more as blob)) from t"


def test_a_join_of_each_row_stays_one_whatever_postgresql_believes_of_the_tables() -> None:
    statement = one("select d.x from a\njoin each t d on d.id = a.id and d.met = 0\nlimit :n;")
    lateral = "cross join lateral (select * from t d where d.id = a.id and d.met = 0 offset 0) d"
    assert statement.postgresql == f"select d.x from a\n{lateral}\nlimit $1"
    assert statement.sqlite == "select d.x from a\njoin t d on d.id = a.id and d.met = 0\nlimit :n"


def test_sqlite_writes_a_batch_row_by_row_with_the_other_parameters_after_each_row() -> None:
    statement = one("update t set a = :now, b = r.x from rows(:batch as r, x text, y bigint) where c = r.y and d = :d;")
    assert statement.sqlite_row == (
        "update t set a = ?3, b = r.x from (select ?1 as x, ?2 as y) as r where c = r.y and d = ?4"
    )
    bound = statement(batch=[("p", 1), ("q", 2)], now=7, d="e")
    assert bound.row_params() == [("p", 1, 7, "e"), ("q", 2, 7, "e")]


def test_sqlite_reads_and_writes_without_a_batch_are_run_as_they_are() -> None:
    assert one("select 1 from rows(:batch as b, id text);").sqlite_row is None
    assert one("update t set a = :a;").sqlite_row is None


# -- the statements there are


def everything() -> list[Statement]:
    return list(chain.from_iterable(ALL.values()))


def test_no_two_statements_share_a_name_anywhere() -> None:
    # A connection prepares statements by name, whichever room they belong to.
    names = [statement.name for statement in [*everything(), BEGIN, COMMIT, LOCK_KEY, PING, ROLLBACK]]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("statement", everything(), ids=lambda statement: statement.name)
def test_nothing_is_left_of_the_fragments_once_rendered(statement: Statement) -> None:
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
def test_select_lists_stand_in_the_order_of_the_struct_they_become(
    statements: Statements, statement: str, struct: type[msgspec.Struct]
) -> None:
    text = squeezed(getattr(statements, statement).sqlite)
    # The longest one: the others are of subqueries and recursions, and name keys.
    listed = max(re.findall(r"select ([a-z_., ]+?) from", text), key=len)
    names = [name.partition(".")[2] for name in listed.split(", ")]
    beside = {"session_nodes_of_subtrees": (["top"], []), "session_nodes_of_cascade": ([], ["termination_reason"])}
    first, last = beside.get(statement, ([], []))
    assert names == [*first, *struct.__struct_fields__, *last]


def test_what_a_cascade_is_written_from_has_every_column_of_its_row_but_what_comes_later() -> None:
    given = set(SESSIONS.cascade_insert.param_order)
    assert given == set(Cascade.__struct_fields__) - {"settled", "finished_at"}
