"""The client for code without a loop: written by a program, and up to date."""

from __future__ import annotations

import ast
import importlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from quarterdeck.sdk.errors import NotFound, TimedOut
from quarterdeck.sdk.sync import Quarterdeck
from tests.support.zone import APP, FreshZone
from tools import generate_sync_sdk as generate

LOOPS = "quarterdeck-sdk"


def client_of(zone: FreshZone) -> Quarterdeck:
    return Quarterdeck.connect(zone.server.url, zone.token(), zone.id)


def loops() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == LOOPS]


@pytest.mark.parametrize("name", generate.SOURCES)
def test_each_file_is_what_would_be_written_now(name: str) -> None:
    written = (generate.TARGET / f"{name}.py").read_text(encoding="utf-8")
    assert written == generate.generate_files()[name], "run `make sdk`"


def test_every_public_call_of_the_client_with_a_loop_is_there_without_one() -> None:
    for name in generate.SOURCES:
        tree = ast.parse((generate.SDK_DIR / f"{name}.py").read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                methods = {n.name for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
                public = {method for method in methods if not method.startswith("_")}
                made = importlib.import_module(f"quarterdeck.sdk.sync.{name}")
                assert public <= set(dir(getattr(made, node.name)))


def test_calls_lists_and_refusals_are_the_same(zone: FreshZone) -> None:
    with client_of(zone) as qd:
        made = [qd.sessions.spawn(APP, metadata={"n": n}).id for n in range(3)]
        assert [session.id for session in qd.sessions.list()] == made[::-1]
        assert qd.sessions.end(made[0]).stopped == 1
        with pytest.raises(NotFound):
            qd.sessions.get("nobody")
        service = qd.services.register(APP, "http://worker.invalid/app")
        asked = qd.invocations.enqueue(service.id, "nobody-serves-it")
        with pytest.raises(TimedOut):
            qd.invocations.wait(asked.id, timeout=0.05)
        assert qd.in_zone(zone.id).zone == zone.id


def test_a_stream_that_is_left_in_the_middle_is_closed(zone: FreshZone) -> None:
    with client_of(zone) as qd:
        made = qd.sessions.spawn(APP)
        for event in qd.events.follow(after=0, types=["session.spawn"]):
            assert event.subject == made.id
            break
        assert [event.subject for event in qd.events.list(types=["session.spawn"])] == [made.id]


def test_threads_share_a_client_and_its_loop(zone: FreshZone) -> None:
    before = len(loops())
    with client_of(zone) as qd, ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda n: qd.sessions.spawn(APP).id, range(40)))
        assert len(set(made)) == 40
        assert len(loops()) == before + 1
        [own] = loops()[before:]
    own.join(10)
    assert not own.is_alive()


def test_a_client_that_was_closed_says_so_and_may_be_closed_again(zone: FreshZone) -> None:
    qd = client_of(zone)
    qd.close()
    assert not loops()
    with client_of(zone) as other:
        other.sessions.spawn(APP)
        other.close()
        with pytest.raises(RuntimeError, match="closed"):
            other.sessions.spawn(APP)
