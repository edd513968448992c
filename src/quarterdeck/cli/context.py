"""The context of a command: typed access to its options, its server and its output."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import TypeVar

from quarterdeck.cli.command_table import Option, ParsedCommand
from quarterdeck.cli.errors import usage_error
from quarterdeck.cli.output import TextStyler
from quarterdeck.client.api import ApiClient, Document, Query, build_path, with_query
from quarterdeck.client.data_dir import DataDir
from quarterdeck.client.discovery import ServerLocation, connect_running_server, connect_server

T = TypeVar("T")


class Context:
    """One run of one command."""

    def __init__(self, parsed: ParsedCommand, environ: Mapping[str, str]) -> None:
        self.parsed = parsed
        self.environ = environ
        self.as_json = self.flag("json")
        self.compact_json = False
        """Set by fleet commands: agents run them constantly and pay for every token that they read."""
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

    def is_given(self, option: Option) -> bool:
        value = self.parsed.values[option.key]
        return value not in (None, ()) and (option.type is not None or value is True)

    def body(self, **extra_fields: object) -> Document:
        """Build the request body: the fields of the options and arguments that were given, and the extra fields.

        What was not given, or is None, is left out: the server applies its default for it.
        """
        fields: Document = {}
        for option in self.parsed.command.options:
            if option.field and self.is_given(option):
                fields[option.field] = self._encode(option)
        fields |= {arg.field: self.parsed.values[arg.key] for arg in self.parsed.command.arguments if arg.field}
        fields |= extra_fields
        return {name: value for name, value in fields.items() if value is not None}

    def changes(self) -> Document:
        """Build the request body of a command that changes an object. At least one option must be given."""
        body = self.body()
        if not body:
            command = " ".join(self.parsed.command.words)
            raise usage_error(f"Give at least one option to change. Try `qd {command} --help`.")
        return body

    def query(self, **extra_params: str | int | None) -> dict[str, str | int | bool | None]:
        """Build the query in the same way. Repeated options are joined with commas."""
        return {name: _query_value(value) for name, value in self.body(**extra_params).items()}

    def with_query(self, path: str, **extra_params: str | int | None) -> str:
        """Append the query to a path."""
        return with_query(path, self.query(**extra_params))

    def _encode(self, option: Option) -> object:
        value = self.parsed.values[option.key]
        encode = None if option.type is None else option.type.encode
        if encode is None or not isinstance(value, str):
            return list(value) if isinstance(value, tuple) else value
        try:
            return encode(value)
        except ValueError as error:
            raise usage_error(f"{option.name}: {error}.") from None

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
            command = " ".join(self.parsed.command.words)
            detail = f"`qd {command}` works only on a local data directory. Remove --url and QD_URL ({url})."
            raise usage_error(detail)
        return self.data_dir

    def server(self, extra_seconds: float = 0.0) -> ApiClient:
        """Connect to the server. Starts it if it is local and not running. `extra_seconds` is added to the timeout."""
        server = connect_server(self.server_location, self.environ, self.note)
        server.connection.timeout_seconds += extra_seconds
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

    def idempotency_key(self) -> str:
        """Return the value of --key, or a random key for this run.

        With the random key, a request that a proxy repeats takes effect only once. `qd` itself never repeats a request,
        so a user who may have to run the command again must give --key.
        """
        return self.text("key") or f"qd-{os.urandom(16).hex()}"

    def send(
        self,
        method: str,
        path: str,
        render: str | Callable[[Document], str],
        *,
        body: Document | None = None,
        key: str | None = None,
    ) -> Document:
        """Send one request and print the response. `key` is the idempotency key."""
        document = self.server().call(method, path, body=body, key=key).document
        self.show(document, render)
        return document

    def remove(self, path: str, document: Document, text: str, *, query: Query | None = None) -> None:
        """Send a DELETE request whose response is empty. Prints the document or the text instead."""
        self.server().call("DELETE", path, query=query)
        self.show(document, text)

    def show(self, document: T, render: str | Callable[[T], str]) -> None:
        """Print the result: as JSON with --json, otherwise as text for people."""
        if not self.as_json:
            self.write(render if isinstance(render, str) else render(document))
        elif self.compact_json:
            self.write(json.dumps(document, ensure_ascii=False, separators=(",", ":")))
        else:
            # Indent for people on a terminal. Print one line per document for programs that read a pipe.
            self.write(json.dumps(document, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None))

    def write(self, text: str) -> None:
        sys.stdout.write(text if text.endswith("\n") else f"{text}\n")

    def note(self, text: str) -> None:
        """Write a note for people to stderr, so that stdout holds only the result."""
        sys.stderr.write(f"qd: {text}\n")
        sys.stderr.flush()

    def hint(self, text: str) -> None:
        """Write a note unless --json is given: programs do not need it."""
        if not self.as_json:
            self.note(text)

    def _can_use_color(self) -> bool:
        return (
            sys.stdout.isatty()
            and not self.flag("no_color")
            and not self.environ.get("NO_COLOR")
            and self.environ.get("TERM") != "dumb"
        )


def _query_value(value: object) -> str | int:
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, bool):
        # A string, because the client leaves out a parameter that is False.
        return "true" if value else "false"
    return value if isinstance(value, int) else str(value)
