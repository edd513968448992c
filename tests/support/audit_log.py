"""A harness for the audit log: seals events, deletes old ones, and verifies the rest."""

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
from tests.support.builders import ZONE
from tests.support.log_tampering import LogRows, read_log
from tests.support.runtime import RuntimeHarness

IMMEDIATE_RETENTION = LogSettings(event_retention_days=1e-9)
"""Every sealed event is old enough to be deleted."""


class AuditLogHarness:
    """The sealer and the retention of a runtime, with a signing key in a directory."""

    def __init__(self, runtime: RuntimeHarness, directory: Path, settings: LogSettings = IMMEDIATE_RETENTION) -> None:
        key = directory / "signing-key.pem"
        self.runtime = runtime
        self.sealer = LogSealer(runtime.cross_zone_engine, LocalIssuer.open(key), settings)
        self.retention = EventRetention(runtime.cross_zone_engine, settings)
        self.verify_signature = load_trusted_keys([key]).verify

    async def emit(self, count: int) -> None:
        """Emit `count` events in one transaction."""

        async def operation(tx: Transaction) -> None:
            await tx.read()
            for number in range(count):
                tx.emit(NewEvent("happened", ZONE, f"s{number % 7}", "tester", data='{"n":"é"}'))

        await self.runtime.engine.transact(operation, zones=[ZONE])

    async def emit_and_seal(self, *counts: int) -> None:
        for count in counts:
            await self.emit(count)
            await self.sealer.run_once(1_000)

    async def run_seal_and_retention(self) -> None:
        """Seal events, raise and attest the floor, and delete the oldest events."""
        await self.emit_and_seal(3, 3)
        for _ in range(2):
            await self.retention.run_once(1_000)
            await self.sealer.run_once(1_000)

    def read_log(self) -> LogRows:
        return read_log(self.runtime.url)

    def verify_log(self) -> VerificationResult:
        log = self.read_log()
        anchor = parse_anchor(log.anchor) if log.seals else None
        return verify(log.verification_input(), self.verify_signature, [anchor] if anchor else [])
