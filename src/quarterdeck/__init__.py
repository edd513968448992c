"""Quarterdeck: a coordination server for fleets of AI agents.

This module holds only the version and `embedded`, because every `qd` command imports it.
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
    """Run a server inside this program: in `async with quarterdeck.embedded("work") as qd:`, `qd` is a client.

    `database` is a data directory, a file that ends in `.db`, or a PostgreSQL URL (then `data` is the directory for the
    keys). Without `database`, the server uses a temporary directory and deletes it at the end. `settings` maps setting
    names to values.
    """
    from quarterdeck.client.server_package import require_server

    require_server("`quarterdeck.embedded()`")
    from quarterdeck.embedded_server import Embedded, EmbeddedConfig  # late: it imports all of the server

    return Embedded(EmbeddedConfig(database, data, settings or {}), zone)
