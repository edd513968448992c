"""Quarterdeck: the coordination plane for fleets of AI agents.

This module stays empty but for the version and one door, because every `qd` command imports it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from quarterdeck.embedded_server import Embedded

__version__ = "0.1.0"


def embedded(
    database: str | os.PathLike[str] | None = None,
    *,
    zone: str = "default",
    data: str | os.PathLike[str] | None = None,
    settings: Mapping[str, str] | None = None,
) -> Embedded:
    """A server inside this program: `async with quarterdeck.embedded("work") as qd:` gives a client of it.

    `database` is a data directory, a file that ends in `.db`, or a PostgreSQL URL (whose keys lie in `data`); without
    one it is a directory that is gone afterwards. `settings` are told by their names."""
    from quarterdeck.embedded_server import Embedded, EmbeddedConfig  # the whole server, for those who ask for it

    return Embedded(EmbeddedConfig(database, data, settings or {}), zone)
