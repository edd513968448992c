"""The context of a command: typed access to its options, its server and its output."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping

from quarterdeck.cli.command_table import ParsedCommand
from quarterdeck.cli.output import TextStyler
from quarterdeck.client.api import ApiClient, Document, build_path
from quarterdeck.client.data_dir import DataDir
from quarterdeck.client.discovery import ServerLocation, connect_running_server, connect_server


class Context:
    """One run of one command."""

    def __init__(self, parsed: ParsedCommand, environ: Mapping[str, str]) -> None:
        self.parsed = parsed
        self.environ = environ
        self.as_json = self.flag("json")
        self.styler = TextStyler(self._can_use_color())

    def text(self, key: str) -> str | None:
        value = self.parsed.values[key]
        return value if isinstance(value, str) else None

    def required_text(self, key: str) -> str:
        """Return the text of a required argument or option."""
        value = self.parsed.values[key]
        assert isinstance(value, str)  # parsing fails if it is missing
        return value

    def number(self, key: str) -> int | None:
        value = self.parsed.values[key]
        return value if isinstance(value, int) else None

    def flag(self, key: str) -> bool:
        return self.parsed.values[key] is True

    def values(self, key: str) -> list[object]:
        value = self.parsed.values[key]
        return list(value) if isinstance(value, tuple) else []

    @property
    def zone(self) -> str:
        return self.text("zone") or self.environ.get("QD_ZONE") or "default"

    @property
    def server_location(self) -> ServerLocation:
        timeout = self.parsed.values["timeout"]
        seconds = timeout if isinstance(timeout, float) else None
        return ServerLocation(self.text("data"), self.text("url"), self.text("token"), seconds)

    @property
    def data_dir(self) -> DataDir:
        return self.server_location.data_dir(self.environ)

    def local_data_dir(self) -> DataDir:
        """Return the data directory, for commands that work only on this machine. Raises if a URL is given."""
        url = self.server_location.explicit_url(self.environ)
        if url is not None:
            from quarterdeck.cli.errors import UsageError

            command = " ".join(self.parsed.command.words)
            detail = f"`qd {command}` works only on a local data directory. Remove --url and QD_URL ({url})."
            raise UsageError("usage", detail)
        return self.data_dir

    def server(self) -> ApiClient:
        """Connect to the server. Starts it if it is local and not running."""
        server = connect_server(self.server_location, self.environ, self.note)
        server.zone = self.zone
        return server

    def find_running_server(self) -> ApiClient | None:
        """Connect to the server, or return None if it is not running. It is not started: a user may have stopped it."""
        server = connect_running_server(self.server_location, self.environ)
        if server is not None:
            server.zone = self.zone
        return server

    def zone_path(self, *segments: str) -> str:
        """Build a path below /zones/ZONE: `zone_path("agents", id)`."""
        return build_path("zones", self.zone, *segments)

    def api_path(self, *segments: str) -> str:
        """Build a path below /api/v1, where a header gives the zone: `api_path("agent-tasks", id)`."""
        return build_path("api", "v1", *segments)

    def show(self, document: Document, render: Callable[[Document], str]) -> None:
        """Print the result: as JSON with --json, otherwise as text for people."""
        if self.as_json:
            # Indent for people on a terminal. Print one line per document for programs that read a pipe.
            indent = 2 if sys.stdout.isatty() else None
            self.write(json.dumps(document, ensure_ascii=False, indent=indent))
        else:
            self.write(render(document))

    def write(self, text: str) -> None:
        sys.stdout.write(text if text.endswith("\n") else f"{text}\n")

    def note(self, text: str) -> None:
        """Write a note for people to stderr, so that stdout holds only the result."""
        sys.stderr.write(f"qd: {text}\n")
        sys.stderr.flush()

    def _can_use_color(self) -> bool:
        return (
            sys.stdout.isatty()
            and not self.flag("no_color")
            and not self.environ.get("NO_COLOR")
            and self.environ.get("TERM") != "dumb"
        )
