"""Who used the processors during a run: read from /proc before and after, so that reading costs the run nothing."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")
CORES = os.cpu_count() or 1
LOOKS = 100


@dataclass(frozen=True, slots=True)
class Watched:
    """The processes whose share is of interest."""

    server: int | None = None
    postgres: int | None = None
    """The postmaster; its children count with it."""
    replicas: tuple[int, ...] = ()
    """More servers, which count with the first."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Processor seconds, and shares of the whole machine."""

    server_seconds: float | None
    server: float | None
    postgres: float | None
    load: float
    """Whatever this process started, waited for and saw end meanwhile: the load generator."""
    idle: float


@dataclass(frozen=True, slots=True)
class _Reading:
    at: float
    server: float
    postgres: float
    load: float
    idle: float
    total: float


class Meter:
    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._before = self._read()

    def stop(self) -> Usage:
        before, after = self._before, self._read()
        whole = (after.at - before.at) * CORES
        server = after.server - before.server if self._watched.server else None
        return Usage(
            server_seconds=server,
            server=server / whole if server is not None else None,
            postgres=(after.postgres - before.postgres) / whole if self._watched.postgres else None,
            load=(after.load - before.load) / whole,
            idle=(after.idle - before.idle) / max(after.total - before.total, 1e-9),
        )

    def _servers(self) -> list[int]:
        return [*([self._watched.server] if self._watched.server else []), *self._watched.replicas]

    def _read(self) -> _Reading:
        own = resource.getrusage(resource.RUSAGE_CHILDREN)
        idle, total = _machine()
        return _Reading(
            at=time.perf_counter(),
            server=sum(process_seconds(pid) for pid in self._servers()),
            postgres=family_seconds(self._watched.postgres) if self._watched.postgres else 0.0,
            load=own.ru_utime + own.ru_stime,
            idle=idle,
            total=total,
        )


def process_seconds(pid: int) -> float:
    """User and system time of all threads of a process."""
    return sum(_stat(pid)[11:13]) / TICK


def family_seconds(pid: int) -> float:
    """The same for a process with its children, those that have ended included."""
    for _ in range(LOOKS):
        try:
            return _family(pid)
        except (Moving, FileNotFoundError, ProcessLookupError):
            time.sleep(0.01)
    raise RuntimeError("the children of a process would not hold still for as long as it takes to count them")


class Moving(Exception):
    """A child ended while the family was counted."""


def _family(pid: int) -> float:
    before = _stat(pid)[11:15]
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    ticks = sum(sum(_stat(int(child))[11:15]) for child in children)
    after = _stat(pid)[11:15]
    # What a child used becomes its parent's when it has ended: seen in neither place, or in both, it would be wrong.
    if before[2:] != after[2:]:
        raise Moving
    return (sum(after) + ticks) / TICK


def resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6  # the kernel's kB is 1,024 bytes
    raise RuntimeError("the kernel tells no VmRSS")


def _stat(pid: int) -> list[int]:
    """The numbers of /proc/PID/stat from the parent's id on, so that user time is the twelfth."""
    text = Path(f"/proc/{pid}/stat").read_text()
    # The name in parentheses may itself hold spaces and parentheses.
    return [0, *(int(word) for word in text.rpartition(")")[2].split()[1:])]


def _machine() -> tuple[float, float]:
    """Idle and total ticks of all cores. Waiting for the disk is idle too; time the hypervisor took is not."""
    fields = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return float(fields[3] + fields[4]), float(sum(fields))
