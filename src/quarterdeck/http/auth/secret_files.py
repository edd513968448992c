"""Secret files: created once, written atomically, readable by their owner only."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

_MAX_BYTES = 16 * 1024
_OWNER_ONLY = 0o600


class KeyFileError(Exception):
    """The file cannot be used. The message is for the operator."""


def read_secret(path: Path) -> bytes | None:
    """The content of a secret file, or None if it does not exist. Refuses a file that others can access."""
    try:
        # O_NONBLOCK: a named pipe is refused below, but without this flag opening it would block.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise KeyFileError(f"The key file {path} cannot be opened: {error.strerror}.") from None
    try:
        # fstat of the open file, not stat of the path: the checked file is the file that is read.
        _check_permissions(path, os.fstat(descriptor))
        content = os.read(descriptor, _MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(content) > _MAX_BYTES:
        raise KeyFileError(f"The key file {path} is too large to be a key.")
    return content


def create_secret(path: Path, content: bytes) -> None:
    """Create a secret file unless it exists. If two processes do so at once, only one of them creates the file.

    With O_EXCL on the final name, the other process could read the file before its content is written. So the content
    is written to a temporary file, which is then linked to the final name. The link fails if that name exists.
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
        raise KeyFileError(f"The key file {path} cannot be created: {error.strerror}.") from None


def replace_secret(path: Path, content: bytes) -> None:
    """Replace a secret atomically: a reader finds either the complete old content or the complete new content."""
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
    """Refuse a file that others can access. A file owned by root may be group-readable, like secrets in Kubernetes."""
    if not stat.S_ISREG(file_status.st_mode):
        raise KeyFileError(f"The key file {path} is not a regular file.")
    if file_status.st_uid not in (os.geteuid(), 0):
        raise KeyFileError(f"The key file {path} belongs to another user, who could replace it. Change its owner.")
    allowed_mode = 0o700 if file_status.st_uid == os.geteuid() else 0o740
    if stat.S_IMODE(file_status.st_mode) & ~allowed_mode & 0o777:
        raise KeyFileError(f"Other users can access the key file {path}. Fix it with: chmod 600 {path}")


def _write_temporary_file(path: Path, content: bytes) -> Path:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _OWNER_ONLY)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    return temporary


def _sync_directory(directory: Path) -> None:
    # Without this a power failure could lose the signing key, and with it all issued tokens.
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
