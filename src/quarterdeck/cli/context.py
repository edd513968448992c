"""What a command works with: its options by type, its server, its output."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping

from quarterdeck.cli.command_table import Ask
from quarterdeck.cli.output import Paint
from quarterdeck.client.api import Document, Server, path_of
from quarterdeck.client.data_dir import Place
from quarterdeck.client.discovery import Where, again, reach


class Context:
    """One run of one command."""

    def __init__(self, ask: Ask, environ: Mapping[str, str]) -> None:
        self.ask = ask
        self.environ = environ
        self.as_json = self.flag("json")
        self.paint = Paint(self._may_colour())

    def text(self, key: str) -> str | None:
        value = self.ask.values[key]
        return value if isinstance(value, str) else None

    def given(self, key: str) -> str:
        """The text of a required argument or option."""
        value = self.ask.values[key]
        assert isinstance(value, str)  # both parsers refuse a line without it
        return value

    def number(self, key: str) -> int | None:
        value = self.ask.values[key]
        return value if isinstance(value, int) else None

    def flag(self, key: str) -> bool:
        return self.ask.values[key] is True

    def many(self, key: str) -> list[object]:
        value = self.ask.values[key]
        return list(value) if isinstance(value, tuple) else []

    @property
    def zone(self) -> str:
        return self.text("zone") or self.environ.get("QD_ZONE") or "default"

    @property
    def where(self) -> Where:
        timeout = self.ask.values["timeout"]
        seconds = timeout if isinstance(timeout, float) else None
        return Where(self.text("data"), self.text("url"), self.text("token"), seconds)

    @property
    def place(self) -> Place:
        return self.where.place(self.environ)

    def own_place(self) -> Place:
        """The data directory, for what can only be done where a server runs."""
        url = self.where.address(self.environ)
        if url is not None:
            from quarterdeck.cli.errors import Usage

            verb = " ".join(self.ask.command.words)
            raise Usage("usage", f"`qd {verb}` works on a data directory of this machine, and {url} was given.")
        return self.place

    def server(self) -> Server:
        """The server this command is for, started where that is allowed."""
        server = reach(self.where, self.environ, self.note)
        server.zone = self.zone
        return server

    def again(self) -> Server | None:
        """The same server, if it is there: whoever stopped it while this command runs may have meant to."""
        server = again(self.where, self.environ)
        if server is not None:
            server.zone = self.zone
        return server

    def in_zone(self, *segments: str) -> str:
        """A path within the zone: `in_zone("agents", id)`."""
        return path_of("zones", self.zone, *segments)

    def work(self, *segments: str) -> str:
        """A path of the work plane, where a header names the zone: `work("agent-tasks", id)`."""
        return path_of("api", "v1", *segments)

    def show(self, document: Document, human: Callable[[Document], str]) -> None:
        """The answer: the document as it is, or as people read it."""
        if self.as_json:
            # A terminal has a reader, a pipe has a parser (and a line per document suits it best).
            indent = 2 if sys.stdout.isatty() else None
            self.write(json.dumps(document, ensure_ascii=False, indent=indent))
        else:
            self.write(human(document))

    def write(self, text: str) -> None:
        sys.stdout.write(text if text.endswith("\n") else f"{text}\n")

    def note(self, text: str) -> None:
        """Beside the answer, for people."""
        sys.stderr.write(f"qd: {text}\n")
        sys.stderr.flush()

    def _may_colour(self) -> bool:
        return (
            sys.stdout.isatty()
            and not self.flag("no_color")
            and not self.environ.get("NO_COLOR")
            and self.environ.get("TERM") != "dumb"
        )
