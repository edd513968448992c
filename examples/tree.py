"""A tree of sessions: spawned, looked at, put to sleep, and stopped as a whole, with a receipt."""

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
            # Readers are spawned at once. Each has a key of its own, so a lost answer never makes a second one.
            await asyncio.gather(*(qd.sessions.spawn("reader", parent_id=researcher.id) for _ in range(3)))
        print_tree(await qd.sessions.tree(planner.id))

        print("asleep: ", await qd.sessions.suspend(planner.id))
        print("awake:  ", await qd.sessions.resume(planner.id))

        receipt = await qd.sessions.end(planner.id, reason="that is enough")
        print("stopped:", receipt.stopped, "of", receipt.asked, "left:", len(receipt.left))
        try:
            await qd.sessions.spawn("reader", parent_id=researcher.id)
        except NotFound as error:
            print("after:  ", error.code)


def print_tree(sessions: tuple[Session, ...]) -> None:
    """Parents come before their children, so the tree can be drawn from its depths."""
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
