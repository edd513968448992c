"""Checks whether this installation has the server, or only the client.

`pip install quarterdeck` installs the SDK and `qd` as a client; `pip install 'quarterdeck[server]'` adds the server.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

from quarterdeck.core.errors import Fault

SERVER_LIBRARIES = (
    "alembic",
    "cryptography",
    "httptools",
    "jwt",
    "prometheus_client",
    "sqlalchemy",
    "standardwebhooks",
    "uvloop",
)
"""The modules that the extra `server` installs."""


class ServerNotInstalled(Fault, status=503, title="Server not installed"):
    """This machine has only the client, or a system on which the server does not run."""


def require_server(purpose: str) -> None:
    """Raise `ServerNotInstalled` if the server cannot run here. `purpose` begins the sentence, such as `qd up`."""
    if sys.platform == "win32":
        raise ServerNotInstalled(
            "server_not_supported",
            f"{purpose} needs the server, which does not run on Windows. "
            "Name a server on another machine with --url, QD_URL or `Quarterdeck.connect(url=…)`.",
        )
    missing = [name for name in SERVER_LIBRARIES if find_spec(name) is None]
    if missing:
        raise ServerNotInstalled(
            "server_not_installed",
            f"{purpose} needs the server, which is not installed (no {', '.join(missing)}). "
            "Install it: pip install 'quarterdeck[server]'",
        )
