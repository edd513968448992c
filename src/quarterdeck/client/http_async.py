"""One connection on an event loop: an exchange after another, or one answer without an end.

An exchange that is given up — by its time, by a cancellation — takes its connection along: what would still come
belongs to nobody, and must not be read as the answer to the next request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from quarterdeck.client.http_parser import Framing
from quarterdeck.client.http_types import Address, Answer, Lost, TimedOut, reason_of

BACKLOG_MAX = 1024 * 1024
"""Of a stream whose reader is slower than the server: beyond this the server has to wait."""


class Wire(asyncio.Protocol):
    """A connection. Opened by `pool`, which also says where to."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.used = 0
        """Answers that were read from it."""
        self.idle_since = 0.0
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._framing: Framing | None = None
        self._news: asyncio.Future[None] | None = None
        self._wrong: Exception | None = None
        self._over = False
        self._paused = False

    @property
    def is_open(self) -> bool:
        return not self._over

    @property
    def has_heard(self) -> bool:
        """Whether anything of the present answer has come."""
        return self._framing is not None and self._framing.has_begun

    # -- what the loop says ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        framing = self._framing
        if framing is None:
            # Nothing was asked: a proxy's goodbye, or an answer that was given up. No request may follow it.
            self.close()
            return
        try:
            framing.feed(data)
        except Lost as wrong:
            self._wrong = wrong
            self.close()
        if framing.waiting > BACKLOG_MAX and framing.is_chunked and self._transport and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._tell()

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True
        if self._wrong is None:
            self._wrong = self._ending(exc)
        self._tell()

    def _ending(self, exc: Exception | None) -> Exception | None:
        if exc is not None:
            return Lost("answer_lost", f"The connection to {self.address} broke: {reason_of(exc)}.")
        try:
            if self._framing is not None:
                self._framing.end()
        except Lost as wrong:
            return wrong
        return None

    def _tell(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    # -- what a caller says ----------------------------------------------------------------------------------------

    async def exchange(self, data: bytes, seconds: float) -> Answer:
        """Sends a request and reads its whole answer. Raises `Lost` or `TimedOut`, and the connection is gone."""
        framing = self._send(data)
        try:
            async with asyncio.timeout(seconds):
                while not framing.is_whole:
                    await self._more()
        except TimeoutError:
            self.close()
            raise TimedOut("answer_timeout", f"{self.address} did not answer within {seconds:g} s.") from None
        except BaseException:  # a cancellation too: the next request must not read the rest of this answer
            self.close()
            raise
        self._framing = None
        self.used += 1
        self.idle_since = self._loop.time()
        if not framing.keeps:
            self.close()
        return framing.answer()

    async def begin(self, data: bytes, seconds: float) -> Answer:
        """Sends a request whose answer may have no end. Of one that has, all is read; of the other `pieces` gives the
        body, which is empty here."""
        framing = self._send(data)
        try:
            async with asyncio.timeout(seconds):
                while not (framing.is_whole or (framing.has_head and self._is_stream(framing))):
                    await self._more()
        except TimeoutError:
            self.close()
            raise TimedOut("answer_timeout", f"{self.address} did not answer within {seconds:g} s.") from None
        except BaseException:  # a cancellation too: the next request must not read the rest of this answer
            self.close()
            raise
        if self._is_stream(framing):
            return Answer(framing.status, framing.headers, b"")
        self.close()
        return framing.answer()

    async def pieces(self, silence_seconds: float) -> AsyncGenerator[bytes, None]:
        """The body of an answer without an end, as it comes. The connection does not outlive it."""
        framing = self._framing
        assert framing is not None
        try:
            while True:
                if piece := framing.take():
                    self._resume()
                    yield piece
                elif framing.is_whole:
                    return
                else:
                    async with asyncio.timeout(silence_seconds):
                        await self._more()
        except TimeoutError:
            raise TimedOut("stream_silent", f"{self.address} has been silent for too long.") from None
        finally:
            self.close()

    def close(self) -> None:
        """At once: nothing that is still to be sent is worth waiting for."""
        self._over = True
        if self._transport is not None:
            self._transport.abort()

    def _send(self, data: bytes) -> Framing:
        if self._over or self._transport is None:
            raise Lost("answer_lost", f"The connection to {self.address} has ended.")
        framing = self._framing = Framing()
        self._transport.write(data)
        return framing

    async def _more(self) -> None:
        """Returns when something has come; raises what keeps anything from coming."""
        if self._wrong is not None:
            raise self._wrong
        if self._over:
            raise Lost("answer_lost", f"The connection to {self.address} has ended.")
        self._news = self._loop.create_future()
        try:
            await self._news
        finally:
            self._news = None
        if self._wrong is not None and not (self._framing and (self._framing.is_whole or self._framing.waiting)):
            raise self._wrong

    def _resume(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    @staticmethod
    def _is_stream(framing: Framing) -> bool:
        return framing.status == 200 and framing.is_chunked
