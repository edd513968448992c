"""Fixtures of panes: a tmux server that the tests of a file share, and one per test."""

from __future__ import annotations

import pytest

from quarterdeck.tmux.panes import Tmux
from tests.support.tmux import TmuxServer, shared_tmux, tmux_server

__all__ = ["shared_tmux", "tmux_server"]


@pytest.fixture
def tmux(shared_tmux: TmuxServer) -> Tmux:
    return Tmux(shared_tmux.socket, 10.0)
