"""A tree of sessions: spawn it, print it, suspend and resume it, and terminate it with a receipt."""

from __future__ import annotations

import asyncio

from quarterdeck.sdk import Quarterdeck
from quarterdeck.sdk.errors import NotFound
from quarterdeck.sdk.types import Session


async def main() -> None:
    async with Quarterdeck.connect() as qd:
        planner = await qd.sessions.spawn("planner", ttl_seconds=600)
        for _ in range(2):
            researcher = await qd.sessions.spawn("researcher", parent_id=planner.id)
            # Spawn the readers concurrently. Each request has its own idempotency key, so a retry after a lost response
            # does not create a second session.
            await asyncio.gather(*(qd.sessions.spawn("reader", parent_id=researcher.id) for _ in range(3)))
        print_tree(await qd.sessions.tree(planner.id))

        print("suspended: ", await qd.sessions.suspend(planner.id))
        print("resumed:   ", await qd.sessions.resume(planner.id))

        receipt = await qd.sessions.end(planner.id, reason="finished")
        print("terminated:", receipt.stopped, "of", receipt.asked, "left:", len(receipt.left))
        try:
            await qd.sessions.spawn("reader", parent_id=researcher.id)
        except NotFound as error:
            print("then spawn:", error.code)


def print_tree(sessions: tuple[Session, ...]) -> None:
    """Print the tree. The first session is the root, because parents come before their children."""
    children: dict[str | None, list[Session]] = {}
    for session in sessions:
        children.setdefault(session.parent_id, []).append(session)

    def print_branch(session: Session) -> None:
        print("  " * session.depth + session.application_id)
        for child in children.get(session.id, []):
            print_branch(child)

    print_branch(sessions[0])


if __name__ == "__main__":
    asyncio.run(main())
