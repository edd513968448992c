"""Sessions: spawn, read, suspend, end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Unpack

from quarterdeck.sdk.options import SpawnOptions
from quarterdeck.sdk.resource import Resource, encode_options, ensure_key
from quarterdeck.sdk.transport import ApiCall
from quarterdeck.sdk.types import Items, Page, Receipt, Resumed, Session, SessionStatus, Suspended


class Sessions(Resource):
    async def spawn(self, application_id: str, *, key: str | None = None, **options: Unpack[SpawnOptions]) -> Session:
        """Spawn a session of an application. The same `key` returns the same session while it is live."""
        body = {"application_id": application_id, **encode_options(SpawnOptions, options)}
        return await self._call(ApiCall("POST", self._path("agents"), body=body, key=ensure_key(key)), Session)

    async def get(self, session_id: str) -> Session:
        return await self._get(self._path("agents", session_id), Session)

    def list(
        self,
        *,
        status: SessionStatus | None = None,
        application_id: str | None = None,
        parent_id: str | None = None,
        root_id: str | None = None,
    ) -> AsyncIterator[Session]:
        """Iterate over sessions, newest first."""
        filters = {"status": status, "application_id": application_id, "parent_id": parent_id, "root_id": root_id}
        return self._iter_items(self._path("agents"), filters, Page[Session])

    def children(self, session_id: str, *, status: SessionStatus | None = None) -> AsyncIterator[Session]:
        """Iterate over the direct children of a session, newest first."""
        return self._iter_items(self._path("agents", session_id, "children"), {"status": status}, Page[Session])

    async def tree(self, session_id: str) -> tuple[Session, ...]:
        """A session with its complete subtree, parents before their children."""
        return tuple((await self._get(self._path("agents", session_id, "tree"), Items[Session])).items)

    async def suspend(self, session_id: str) -> int:
        """Suspend a session and its subtree. Returns how many sessions were suspended.

        Not retried after a lost response, because a repeated call writes another event.
        """
        return (await self._call(ApiCall("POST", self._path("agents", session_id, "suspend")), Suspended)).suspended

    async def resume(self, session_id: str) -> int:
        """Clear the session's own suspension. Returns how many sessions were resumed.

        Not retried after a lost response.
        """
        return (await self._call(ApiCall("POST", self._path("agents", session_id, "resume")), Resumed)).resumed

    async def end(self, session_id: str, *, reason: str | None = None) -> Receipt:
        """Terminate a session and its subtree. Returns the receipt. The call can be repeated safely."""
        query = {"receipt": True, "reason": reason}
        return await self._call(ApiCall("DELETE", self._path("agents", session_id), query, is_idempotent=True), Receipt)
