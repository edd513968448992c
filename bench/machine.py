"""Describes the machine and the commit of a measurement."""

from __future__ import annotations

import os
import platform
import sqlite3
import subprocess
import tempfile
from pathlib import Path

from bench.plan import ROOT


def describe() -> dict[str, str]:
    return {
        "processor": f"{_cpu_model()}, {os.cpu_count()} cores",
        "memory": f"{_memory_gib():.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "disk": _describe_disk(filesystem_type(Path(tempfile.gettempdir()))),
        "Python": platform.python_version(),
        "SQLite": sqlite3.sqlite_version,
    }


def describe_commit() -> str:
    """The commit that is checked out, and whether there are uncommitted changes."""
    head = _run_git("rev-parse", "--short=12", "HEAD")
    if not head:
        return "unknown"
    return f"{head} and uncommitted changes" if _run_git("status", "--porcelain", "--untracked-files=no") else head


def filesystem_type(path: Path) -> str:
    """The type of the file system of a path: that of the longest mount point above it."""
    longest, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, mount_type, *_ = line.split()
        if path.resolve().is_relative_to(mount) and len(mount) >= len(longest):
            longest, kind = mount, mount_type
    return kind


def _describe_disk(kind: str) -> str:
    # Results for durable commits are wrong on a RAM disk, so the report must show it.
    return f"{kind}, which is not durable: set TMPDIR to a real disk" if kind in ("tmpfs", "ramfs") else kind


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _run_git(*arguments: str) -> str:
    try:
        completed = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return completed.stdout.strip() if completed.returncode == 0 else ""
