"""The generated synchronous client is up to date and behaves like the asynchronous one."""

from __future__ import annotations

import ast
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import get_type_hints

import pytest

from quarterdeck.sdk import Quarterdeck as AsyncQuarterdeck, sync
from quarterdeck.sdk.errors import NotFound, TimedOut
from quarterdeck.sdk.sync import Quarterdeck
from tests.support.zone import APP, FreshZone
from tools import generate_sync_sdk as generate

LOOP_THREAD_NAME = "quarterdeck-sdk"


def sync_client(zone: FreshZone) -> Quarterdeck:
    return Quarterdeck.connect(zone.server.url, zone.token(), zone.id)


def loop_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == LOOP_THREAD_NAME]


def test_generated_types_are_up_to_date() -> None:
    assert generate.TARGET.read_text(encoding="utf-8") == generate.generate(), "run `make sdk`"


def test_sync_client_has_exactly_the_declared_calls() -> None:
    declared = [node for node in ast.parse(generate.generate()).body if isinstance(node, ast.ClassDef)]
    for node in declared:
        methods = {child.name for child in node.body if isinstance(child, ast.FunctionDef)}
        public = {name for name in vars(getattr(sync, node.name)) if not name.startswith("_")}
        assert {name for name in methods if not name.startswith("_")} == public


@pytest.mark.parametrize(("name", "async_class"), get_type_hints(AsyncQuarterdeck).items())
def test_sync_client_has_every_public_call_of_a_resource(name: str, async_class: type) -> None:
    blocking = type(getattr(Quarterdeck.connect("http://127.0.0.1:1", "t"), name))
    public = {call for call in vars(async_class) if not call.startswith("_")}
    assert public == {call for call in vars(blocking) if not call.startswith("_")}
    for call in public:
        assert inspect.signature(getattr(blocking, call)) == inspect.signature(getattr(async_class, call))
        assert getattr(blocking, call).__doc__ == getattr(async_class, call).__doc__


def test_sync_client_has_every_public_call_of_the_client() -> None:
    assert {name for name in vars(AsyncQuarterdeck) if not name.startswith("_")} <= set(dir(Quarterdeck))


def test_sync_calls_lists_and_refusals_behave_like_async(zone: FreshZone) -> None:
    with sync_client(zone) as qd:
        session_ids = [qd.sessions.spawn(APP, metadata={"n": n}).id for n in range(3)]
        assert [session.id for session in qd.sessions.list()] == session_ids[::-1]
        assert qd.sessions.end(session_ids[0]).stopped == 1
        with pytest.raises(NotFound):
            qd.sessions.get("no-such-session")
        service = qd.services.register(APP, "http://worker.invalid/app")
        invocation = qd.invocations.enqueue(service.id, "no-such-method")
        with pytest.raises(TimedOut):
            qd.invocations.wait(invocation.id, timeout=0.05)
        assert qd.in_zone(zone.id).zone == zone.id


def test_abandoned_stream_is_closed(zone: FreshZone) -> None:
    with sync_client(zone) as qd:
        session = qd.sessions.spawn(APP)
        for event in qd.events.follow(after=0, types=["session.spawn"]):
            assert event.subject == session.id
            break
        assert [event.subject for event in qd.events.list(types=["session.spawn"])] == [session.id]


def test_threads_share_a_client_and_its_loop(zone: FreshZone) -> None:
    before = len(loop_threads())
    with sync_client(zone) as qd, ThreadPoolExecutor(8) as threads:
        session_ids = list(threads.map(lambda n: qd.sessions.spawn(APP).id, range(40)))
        assert len(set(session_ids)) == 40
        assert len(loop_threads()) == before + 1
        [loop_thread] = loop_threads()[before:]
    loop_thread.join(10)
    assert not loop_thread.is_alive()


def test_closed_client_raises_and_can_be_closed_again(zone: FreshZone) -> None:
    qd = sync_client(zone)
    qd.close()
    assert not loop_threads()
    with sync_client(zone) as other:
        other.sessions.spawn(APP)
        other.close()
        with pytest.raises(RuntimeError, match="closed"):
            other.sessions.spawn(APP)
