"""The keys in Redis without a server: on a keel, one turn of the mirror after another."""

from __future__ import annotations

from dataclasses import dataclass, field

from quarterdeck.bus.redis import key_layout
from quarterdeck.bus.redis.client import ErrorCounter, connect
from quarterdeck.bus.redis.key_writer import RedisKeyWriter
from quarterdeck.core.ids import new_id
from quarterdeck.domain.tasks.operations.redis_rows import TaskMirrorSource
from quarterdeck.engine.leases import Fence, Lease
from quarterdeck.engine.mirrors.keys import SINK_NAME, KeyMirror
from quarterdeck.engine.settings import SinkSettings
from tests.support.asking import ZONE
from tests.support.keel import Keel
from tests.support.redis import RedisSide
from tests.support.working import Working

SELDOM = SinkSettings(keys_reconcile_interval_ms=600_000)
"""A test says when it is time to compare."""
OWN = ("quarterdeck:",)
"""Keys that are nobody's but ours."""
Shown = dict[str, object]


def board_on(url: str, errors: ErrorCounter | None = None) -> RedisKeyWriter:
    return RedisKeyWriter(connect(url, 4, "surrogateescape"), errors or ErrorCounter())


@dataclass
class Mirroring:
    """One process's share."""

    keel: Keel
    url: str
    settings: SinkSettings = field(default_factory=lambda: SELDOM)

    def __post_init__(self) -> None:
        self.board = board_on(self.url)
        self.mirror = KeyMirror(self.keel.everywhere, TaskMirrorSource(), self.board, self.settings)
        self.lease = Lease(self.keel.everywhere, SINK_NAME, new_id(), 60_000)

    async def fence(self) -> Fence:
        fence = self.lease.fence() or await self.lease.acquire()
        assert fence is not None, "somebody else holds the lease"
        return fence

    async def turns(self) -> None:
        """Until there is nothing more to do at once: all is told, and a round was made if one was due."""
        while await self.mirror.run_cycle(await self.fence()) == 0:
            pass

    async def compare(self) -> int:
        """A whole round, as when it is time for it; how much it has put right."""
        before = self.mirror.repairs
        self.due()
        await self.turns()
        return self.mirror.repairs - before

    def noted(self) -> None:
        """Lets the sink's position have been written down: else what it has told is told again, which rights it."""
        self.keel.side.run("update sinks set position = (select pos from log_head) where name = ?", SINK_NAME)

    def due(self) -> None:
        """Lets it be time to compare."""
        self.mirror._comparison_due_at = 0.0

    async def take_over(self) -> None:
        self.keel.side.run("update leases set expires_at = 0 where name = ?", SINK_NAME)
        assert await self.lease.acquire()


def shown(redis: RedisSide, *but: str) -> Shown:
    """Everything that others see, by key."""
    found: Shown = {}
    for key in sorted(map(str, redis.client.scan_iter("*", count=1000))):
        if not key.startswith((*OWN, *but)):
            found[key] = _content(redis, key)
    return found


def _content(redis: RedisSide, key: str) -> object:
    client = redis.client
    match client.type(key):
        case "zset":
            return client.zrange(key, 0, -1, withscores=True)
        case "set":
            return client.smembers(key)
        case "hash":
            return client.hgetall(key)
        case "list":
            return client.lrange(key, 0, -1)
        case _:
            return client.get(key)


def old(keel: Keel) -> None:
    """Lets nothing have changed a moment ago: what is wrong then is not merely late."""
    keel.side.run("update agent_tasks set updated_at = updated_at - 60000")
    keel.side.run("update agents set updated_at = updated_at - 60000")
    keel.side.run("update agent_pulses set last_seen_at = last_seen_at - 60000")


def status_key(agent_id: str, zone_id: str) -> str:
    return key_layout.STATUS + key_layout.format_agent_name((zone_id, agent_id))


async def a_day_of_keys(keel: Keel) -> None:
    """What is read of rows to be shown, without Redis."""
    rows, work = TaskMirrorSource(), Working(keel)
    await work.agent("mirrored")
    await work.make()
    await work.claim("mirrored")
    await keel.everywhere.read(lambda tx: rows.list_contents(tx, ZONE, None, 10))
    refs = await keel.everywhere.read(lambda tx: rows.list_recovering(tx, 10))
    await keel.everywhere.read(lambda tx: rows.load_mirrored(tx, [*refs, (ZONE, "head")], [(ZONE, "mirrored")]))
