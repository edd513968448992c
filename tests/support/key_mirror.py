"""A harness for the mirror of keys in Redis: tests run its cycles one by one, without a server."""

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
from tests.support.builders import ZONE
from tests.support.redis import DirectRedis
from tests.support.runtime import RuntimeHarness
from tests.support.tasks import TaskHarness

RARE_RECONCILE = SinkSettings(keys_reconcile_interval_ms=600_000)
"""The interval never elapses: a test decides when a comparison is due."""
INTERNAL_PREFIXES = ("quarterdeck:",)
"""Keys that the mirror uses itself and that readers ignore."""
KeyContents = dict[str, object]


def open_key_writer(url: str, errors: ErrorCounter | None = None) -> RedisKeyWriter:
    return RedisKeyWriter(connect(url, 4, "surrogateescape"), errors or ErrorCounter())


@dataclass
class KeyMirrorHarness:
    """The mirror of one process."""

    runtime: RuntimeHarness
    url: str
    settings: SinkSettings = field(default_factory=lambda: RARE_RECONCILE)

    def __post_init__(self) -> None:
        self.key_writer = open_key_writer(self.url)
        self.mirror = KeyMirror(self.runtime.cross_zone_engine, TaskMirrorSource(), self.key_writer, self.settings)
        self.lease = Lease(self.runtime.cross_zone_engine, SINK_NAME, new_id(), 60_000)

    async def get_fence(self) -> Fence:
        fence = self.lease.fence() or await self.lease.acquire()
        assert fence is not None, "another process holds the lease"
        return fence

    async def run_until_idle(self) -> None:
        """Run cycles until all events are mirrored and a comparison that was due is done."""
        while await self.mirror.run_cycle(await self.get_fence()) == 0:
            pass

    async def run_comparison(self) -> int:
        """Run a full comparison. Return the number of repairs."""
        before = self.mirror.repair_count
        self.make_comparison_due()
        await self.run_until_idle()
        return self.mirror.repair_count - before

    def save_position(self) -> None:
        """Store the sink's position. Otherwise it delivers the same events again, which would repair the keys."""
        self.runtime.database.execute(
            "update sinks set position = (select pos from log_head) where name = ?", SINK_NAME
        )

    def make_comparison_due(self) -> None:
        self.mirror._comparison_due_at = 0.0

    async def take_over(self) -> None:
        self.runtime.database.execute("update leases set expires_at = 0 where name = ?", SINK_NAME)
        assert await self.lease.acquire()


def read_keys(redis: DirectRedis, *excluded: str) -> KeyContents:
    """Return the content of every public key."""
    found: KeyContents = {}
    for key in sorted(map(str, redis.client.scan_iter("*", count=1000))):
        if not key.startswith((*INTERNAL_PREFIXES, *excluded)):
            found[key] = _key_content(redis, key)
    return found


def _key_content(redis: DirectRedis, key: str) -> object:
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


def age_rows(runtime: RuntimeHarness) -> None:
    """Backdate all rows: a difference of a recently changed row would count as late, not as wrong."""
    runtime.database.execute("update agent_tasks set updated_at = updated_at - 60000")
    runtime.database.execute("update agents set updated_at = updated_at - 60000")
    runtime.database.execute("update agent_pulses set last_seen_at = last_seen_at - 60000")


def status_key(agent_id: str, zone_id: str) -> str:
    return key_layout.STATUS_PREFIX + key_layout.format_agent_name((zone_id, agent_id))


async def run_mirror_workload(runtime: RuntimeHarness) -> None:
    """Run the statements of the mirror, without Redis."""
    source, harness = TaskMirrorSource(), TaskHarness(runtime)
    await harness.register_agent("mirrored")
    await harness.create()
    await harness.claim("mirrored")
    await runtime.cross_zone_engine.read(lambda tx: source.list_contents(tx, ZONE, None, 10))
    refs = await runtime.cross_zone_engine.read(lambda tx: source.list_recovering(tx, 10))
    await runtime.cross_zone_engine.read(
        lambda tx: source.load_mirrored(tx, [*refs, (ZONE, "head")], [(ZONE, "mirrored")])
    )
