"""Whoever keeps a log: seals it, removes what is old, and proves what is there."""

from __future__ import annotations

from pathlib import Path

from quarterdeck.core.audit_verify import VerificationResult, parse_anchor, verify
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.event_retention import EventRetention
from quarterdeck.engine.log_sealer import LogSealer
from quarterdeck.engine.settings import LogSettings
from quarterdeck.engine.transaction import Transaction
from quarterdeck.http.auth import LocalIssuer
from quarterdeck.maintenance.audit_keys import load_trusted_keys
from tests.support.asking import ZONE
from tests.support.keel import Keel
from tests.support.tampering import Log, read_log

AT_ONCE = LogSettings(event_retention_days=1e-9)
"""Whatever was sealed is old enough to go."""


class Keeper:
    """On a keel, with a key in a directory."""

    def __init__(self, keel: Keel, directory: Path, settings: LogSettings = AT_ONCE) -> None:
        key = directory / "signing-key.pem"
        self.keel = keel
        self.sealer = LogSealer(keel.everywhere, LocalIssuer.open(key), settings)
        self.retention = EventRetention(keel.everywhere, settings)
        self.trust = load_trusted_keys([key]).verify

    async def happen(self, count: int) -> None:
        """So many events in one transaction."""

        async def operation(tx: Transaction) -> None:
            await tx.read()
            for number in range(count):
                tx.emit(NewEvent("happened", ZONE, f"s{number % 7}", "tester", data='{"n":"é"}'))

        await self.keel.engine.transact(operation, zones=[ZONE])

    async def seal(self, *counts: int) -> None:
        for count in counts:
            await self.happen(count)
            await self.sealer.run_once(1_000)

    async def pass_by(self) -> None:
        """A day of the log: sealed, its floor raised and attested, its oldest events removed."""
        await self.seal(3, 3)
        for _ in range(2):
            await self.retention.run_once(1_000)
            await self.sealer.run_once(1_000)

    def log(self) -> Log:
        return read_log(self.keel.url)

    def proof(self) -> VerificationResult:
        log = self.log()
        anchor = parse_anchor(log.anchor) if log.seals else None
        return verify(log.evidence(), self.trust, [anchor] if anchor else [])
