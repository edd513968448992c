"""What a command works with: its options by type, its server, its output."""

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
        """The text of a required argument or option."""
        value = self.parsed.values[key]
        assert isinstance(value, str)  # both parsers refuse a line without it
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
        """The data directory, for what can only be done where a server runs."""
        url = self.server_location.explicit_url(self.environ)
        if url is not None:
            from quarterdeck.cli.errors import UsageError

            command = " ".join(self.parsed.command.words)
            raise UsageError("usage", f"`qd {command}` works on a data directory of this machine, and {url} was given.")
        return self.data_dir

    def server(self) -> ApiClient:
        """The server this command is for, started where that is allowed."""
        server = connect_server(self.server_location, self.environ, self.note)
        server.zone = self.zone
        return server

    def find_running_server(self) -> ApiClient | None:
        """The same server, if it is there: whoever stopped it while this command runs may have meant to."""
        server = connect_running_server(self.server_location, self.environ)
        if server is not None:
            server.zone = self.zone
        return server

    def in_zone(self, *segments: str) -> str:
        """A path within the zone: `in_zone("agents", id)`."""
        return build_path("zones", self.zone, *segments)

    def api_path(self, *segments: str) -> str:
        """A path of the work plane, where a header names the zone: `work("agent-tasks", id)`."""
        return build_path("api", "v1", *segments)

    def show(self, document: Document, render: Callable[[Document], str]) -> None:
        """The answer: the document as it is, or as people read it."""
        if self.as_json:
            # A terminal has a reader, a pipe has a parser (and a line per document suits it best).
            indent = 2 if sys.stdout.isatty() else None
            self.write(json.dumps(document, ensure_ascii=False, indent=indent))
        else:
            self.write(render(document))

    def write(self, text: str) -> None:
        sys.stdout.write(text if text.endswith("\n") else f"{text}\n")

    def note(self, text: str) -> None:
        """Beside the answer, for people."""
        sys.stderr.write(f"qd: {text}\n")
        sys.stderr.flush()

    def _can_use_color(self) -> bool:
        return (
            sys.stdout.isatty()
            and not self.flag("no_color")
            and not self.environ.get("NO_COLOR")
            and self.environ.get("TERM") != "dumb"
        )
