"""CPU time by process during a run. /proc is read only before and after a run, so that reading costs it nothing."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
CORES = os.cpu_count() or 1
READ_ATTEMPTS = 100


@dataclass(frozen=True, slots=True)
class WatchedProcesses:
    """The process ids to measure."""

    server: int | None = None
    postgres: int | None = None
    """The postmaster. Its children are included."""
    replicas: tuple[int, ...] = ()
    """More servers. They are added to the first."""


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds, and shares of all cores together."""

    server_seconds: float | None
    server: float | None
    postgres: float | None
    load: float
    """Child processes of this process that ended during the run: the load generator."""
    idle: float


@dataclass(frozen=True, slots=True)
class _Reading:
    at: float
    server: float
    postgres: float
    load: float
    idle: float
    total: float


class CpuMeter:
    def __init__(self, watched: WatchedProcesses) -> None:
        self._watched = watched
        self._before = self._read()

    def stop(self) -> Usage:
        before, after = self._before, self._read()
        total_seconds = (after.at - before.at) * CORES
        server = after.server - before.server if self._watched.server else None
        return Usage(
            server_seconds=server,
            server=server / total_seconds if server is not None else None,
            postgres=(after.postgres - before.postgres) / total_seconds if self._watched.postgres else None,
            load=(after.load - before.load) / total_seconds,
            idle=(after.idle - before.idle) / max(after.total - before.total, 1e-9),
        )

    def _server_pids(self) -> list[int]:
        return [*([self._watched.server] if self._watched.server else []), *self._watched.replicas]

    def _read(self) -> _Reading:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        idle, total = _read_machine()
        return _Reading(
            at=time.perf_counter(),
            server=sum(process_seconds(pid) for pid in self._server_pids()),
            postgres=process_tree_seconds(self._watched.postgres) if self._watched.postgres else 0.0,
            load=children.ru_utime + children.ru_stime,
            idle=idle,
            total=total,
        )


def process_seconds(pid: int) -> float:
    """User and system time of all threads of a process."""
    return sum(_read_stat(pid)[11:13]) / TICKS_PER_SECOND


def process_tree_seconds(pid: int) -> float:
    """User and system time of a process and its children, including ended ones."""
    for _ in range(READ_ATTEMPTS):
        try:
            return _read_process_tree(pid)
        except (ProcessTreeChanged, FileNotFoundError, ProcessLookupError):
            time.sleep(0.01)
    raise RuntimeError(f"the children of process {pid} changed during {READ_ATTEMPTS} attempts to count them")


class ProcessTreeChanged(Exception):
    """A child process ended while the process tree was read."""


def _read_process_tree(pid: int) -> float:
    before = _read_stat(pid)[11:15]
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    ticks = sum(sum(_read_stat(int(child))[11:15]) for child in children)
    after = _read_stat(pid)[11:15]
    # The time of an ended child moves to its parent. If that happens during the read, it is missed or counted twice.
    if before[2:] != after[2:]:
        raise ProcessTreeChanged
    return (sum(after) + ticks) / TICKS_PER_SECOND


def resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6  # the kernel's kB is 1,024 bytes
    raise RuntimeError(f"/proc/{pid}/status has no VmRSS")


def _read_stat(pid: int) -> list[int]:
    """The numbers of /proc/PID/stat, starting before the parent's id, so that user time has index 11."""
    text = Path(f"/proc/{pid}/stat").read_text()
    # The name in parentheses may contain spaces and parentheses.
    return [0, *(int(field) for field in text.rpartition(")")[2].split()[1:])]


def _read_machine() -> tuple[float, float]:
    """Idle and total ticks of all cores. Waiting for the disk is idle time; steal time is not."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return float(fields[3] + fields[4]), float(sum(fields))
