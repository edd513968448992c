"""What can go wrong with a pane. Each is a sentence for people."""

from __future__ import annotations


class TmuxError(Exception):
    """Why tmux did not do it."""


class NoSpace(TmuxError):
    """A pane is too small to be split."""


class PaneChanged(TmuxError):
    """The pane is gone, or no longer what it was: nothing was done to it."""
