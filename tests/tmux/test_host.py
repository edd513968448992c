"""The id of this host: stable, and different in each container."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quarterdeck.tmux import host


def test_host_id_is_stable_and_includes_the_user() -> None:
    assert host.this_host() == host.this_host()
    assert host.this_host().user_id == os.geteuid()


def test_host_id_does_not_contain_the_machine_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine_id = "0123456789abcdef0123456789abcdef"
    (tmp_path / "machine-id").write_text(machine_id + "\n")
    monkeypatch.setattr(host, "MACHINE_ID_FILES", (tmp_path / "none", tmp_path / "machine-id"))
    monkeypatch.setattr(host, "PID_NAMESPACE_LINK", tmp_path / "none")
    host_id = host.this_host().id
    assert host_id == host.host_id(machine_id, None)
    assert machine_id not in host_id


def test_containers_with_the_same_machine_id_are_different_hosts() -> None:
    machine_id = "0123456789abcdef0123456789abcdef"
    namespaces = (host.INITIAL_NAMESPACE, "pid:[4026532001]", "pid:[4026532002]")
    ids = {host.host_id(machine_id, namespace) for namespace in namespaces}
    assert len(ids) == 3
    assert host.host_id(machine_id, None) == host.host_id(machine_id, host.INITIAL_NAMESPACE)


def test_host_without_a_machine_id_has_a_stable_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "machine-id").write_text("uninitialized\n")
    monkeypatch.setattr(host, "MACHINE_ID_FILES", (tmp_path / "machine-id",))
    assert host.this_host() == host.this_host()
    assert host.this_host().id
