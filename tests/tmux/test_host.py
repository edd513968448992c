"""Which host this is: the same each time, and another in another container."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quarterdeck.tmux import host


def test_a_host_is_the_same_each_time_and_has_a_user() -> None:
    assert host.this_host() == host.this_host()
    assert host.this_host().user_id == os.geteuid()


def test_the_machines_own_id_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = "0123456789abcdef0123456789abcdef"
    (tmp_path / "machine-id").write_text(own + "\n")
    monkeypatch.setattr(host, "MACHINE_IDS", (tmp_path / "none", tmp_path / "machine-id"))
    monkeypatch.setattr(host, "NAMESPACE", tmp_path / "none")
    shown = host.this_host().id
    assert shown == host.host_id(own, None)
    assert own not in shown


def test_containers_that_share_a_machines_id_are_different_hosts() -> None:
    machine = "0123456789abcdef0123456789abcdef"
    ids = {host.host_id(machine, space) for space in (host.INITIAL_NAMESPACE, "pid:[4026532001]", "pid:[4026532002]")}
    assert len(ids) == 3
    assert host.host_id(machine, None) == host.host_id(machine, host.INITIAL_NAMESPACE)


def test_a_host_without_a_machine_id_has_an_id_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "machine-id").write_text("uninitialized\n")
    monkeypatch.setattr(host, "MACHINE_IDS", (tmp_path / "machine-id",))
    assert host.this_host() == host.this_host()
    assert host.this_host().id
