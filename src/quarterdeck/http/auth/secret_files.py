"""Secrets in files: made once, written whole, readable by their owner alone."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

_MAX_BYTES = 16 * 1024
_OWNER_ONLY = 0o600


class KeyFileError(Exception):
    """The file cannot serve. Its text is a sentence for the operator, and names the command that mends it."""


def read_secret(path: Path) -> bytes | None:
    """The content of a secret file; None if there is none. Refuses one that others could read or write."""
    try:
        # Not blocking: a pipe of that name must be refused, not waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise KeyFileError(f"The key file {path} cannot be opened: {error.strerror}.") from None
    try:
        # Of the opened file, not of its path: what was looked at is what is read.
        _check_permissions(path, os.fstat(descriptor))
        content = os.read(descriptor, _MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(content) > _MAX_BYTES:
        raise KeyFileError(f"The key file {path} is too large to be a key.")
    return content


def create_secret(path: Path, content: bytes) -> None:
    """Make a secret file unless there is one. When two do so at once, one wins and both find its content.

    O_EXCL on the name itself would let the loser read a file that the winner has not filled yet. So the
    content is written under a name of its own first, and then linked to the wanted name, which fails if that
    is taken.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = _write_temporary_file(path, content)
        try:
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
        finally:
            temporary.unlink()
        _sync_directory(path.parent)
    except OSError as error:
        raise KeyFileError(f"The key file {path} cannot be made: {error.strerror}.") from None


def replace_secret(path: Path, content: bytes) -> None:
    """Put a new secret in the place of the old one: a reader finds the one or the other, whole."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = _write_temporary_file(path, content)
        try:
            temporary.replace(path)
        except OSError:
            temporary.unlink()
            raise
    except OSError as error:
        raise KeyFileError(f"The file {path} cannot be written: {error.strerror}.") from None


def _check_permissions(path: Path, file_status: os.stat_result) -> None:
    """Ours: nobody else may touch it. Root's: our group may read it, as pods are given their secrets."""
    if not stat.S_ISREG(file_status.st_mode):
        raise KeyFileError(f"The key file {path} is not a regular file.")
    if file_status.st_uid not in (os.geteuid(), 0):
        raise KeyFileError(f"The key file {path} belongs to another user, who could replace it.")
    allowed = 0o700 if file_status.st_uid == os.geteuid() else 0o740
    if stat.S_IMODE(file_status.st_mode) & ~allowed & 0o777:
        raise KeyFileError(f"The key file {path} is open to others. Mend it with: chmod 600 {path}")


def _write_temporary_file(path: Path, content: bytes) -> Path:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _OWNER_ONLY)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    return temporary


def _sync_directory(directory: Path) -> None:
    # A key that signs tokens and is gone after a power cut would orphan every one of them.
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
