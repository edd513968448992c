"""Exceptions that this package raises. Their messages are shown to users."""

from __future__ import annotations


class TmuxError(Exception):
    """A tmux command failed."""


class NoSpace(TmuxError):
    """The pane is too small to be split."""


class PaneChanged(TmuxError):
    """The pane no longer exists or has changed, so the tmux command was not run on it.

    If a line was being typed, its text may already be in the pane, without Enter.
    """
