"""Files of the local issuer: created once, even by concurrent starts, and refused unless private."""

from __future__ import annotations

import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)

from quarterdeck.core.caller import ADMIN, COORDINATOR_ADMIN, FLEET_EXEC, LIFECYCLE, Caller
from quarterdeck.http.auth import Authenticator, AuthSettings, Grant, KeyFileError, LocalIssuer
from quarterdeck.http.auth.secret_files import read_secret
from tests.http.auth_support import NOW, FakeClock, authorization_header, rsa_key
from tests.support.rounds import ROUNDS


def file_mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def file_names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture(autouse=True)
def permissive_umask() -> object:
    """The files must be private even without a strict umask."""
    before = os.umask(0)
    yield
    os.umask(before)


def test_first_start_creates_a_private_key_that_later_starts_use(tmp_path: Path) -> None:
    key_file = tmp_path / "new" / "data" / "signing-key.pem"
    first = LocalIssuer.open(key_file)
    assert (file_mode(key_file), file_mode(key_file.parent)) == (0o600, 0o700)
    assert file_names(key_file.parent) == ["signing-key.pem"]
    again = LocalIssuer.open(key_file)
    assert (again.kid, again.issuer) == (first.kid, first.issuer)
    assert first.issuer == f"urn:quarterdeck:{first.kid}"
    assert LocalIssuer.open(key_file, "https://issuer.example").issuer == "https://issuer.example"


@pytest.mark.parametrize("attempt", range(ROUNDS))
def test_concurrent_starts_share_one_key(tmp_path: Path, attempt: int) -> None:
    barrier = threading.Barrier(16)

    def start(_: int) -> str:
        barrier.wait()
        return LocalIssuer.open(tmp_path / "data" / "signing-key.pem").kid

    with ThreadPoolExecutor(16) as pool:
        kids = list(pool.map(start, range(16)))
    assert len(set(kids)) == 1
    assert file_names(tmp_path / "data") == ["signing-key.pem"]


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o644, 0o660, 0o602, 0o620, 0o601, 0o666])
def test_key_file_open_to_others_is_refused_with_the_chmod_command(tmp_path: Path, mode: int) -> None:
    key_file = tmp_path / "signing-key.pem"
    LocalIssuer.open(key_file)
    key_file.chmod(mode)
    with pytest.raises(KeyFileError, match="chmod 600"):
        LocalIssuer.open(key_file)
    key_file.chmod(0o400)
    LocalIssuer.open(key_file)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner of a file")
def test_key_file_of_another_user_is_refused(tmp_path: Path) -> None:
    key_file = tmp_path / "signing-key.pem"
    LocalIssuer.open(key_file)
    os.chown(key_file, 54321, -1)
    with pytest.raises(KeyFileError, match="another user"):
        LocalIssuer.open(key_file)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a file owned by root")
@pytest.mark.parametrize(("mode", "accepted"), [(0o440, True), (0o640, True), (0o644, False), (0o660, False)])
def test_key_file_of_root_may_be_group_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, accepted: bool
) -> None:
    key_file = tmp_path / "signing-key.pem"
    LocalIssuer.open(key_file)
    key_file.chmod(mode)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    if accepted:
        LocalIssuer.open(key_file)
    else:
        with pytest.raises(KeyFileError, match="Other users can access"):
            LocalIssuer.open(key_file)


def pem(key: PrivateKeyTypes, encryption: KeySerializationEncryption | None = None) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption or NoEncryption())


P256 = ec.generate_private_key(ec.SECP256R1())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"s3cret, but no key",
        b"x" * 20_000,
        pem(P256)[:-30],
        pem(ec.generate_private_key(ec.SECP384R1())),
        pem(ed25519.Ed25519PrivateKey.generate()),
        pem(rsa_key(2048)),
        pem(P256, BestAvailableEncryption(b"passphrase")),
    ],
)
def test_file_without_an_es256_key_is_refused_and_unchanged(tmp_path: Path, content: bytes) -> None:
    key_file = tmp_path / "signing-key.pem"
    key_file.write_bytes(content)
    key_file.chmod(0o600)
    with pytest.raises(KeyFileError) as refusal:
        LocalIssuer.open(key_file)
    assert str(key_file) in str(refusal.value)
    assert "s3cret" not in str(refusal.value)
    assert key_file.read_bytes() == content


def test_key_path_that_is_not_a_regular_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="regular file"):
        LocalIssuer.open(tmp_path)
    with pytest.raises(KeyFileError, match="regular file"):
        LocalIssuer.open(Path("/dev/null"))
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(KeyFileError, match="regular file"):
        LocalIssuer.open(tmp_path / "pipe")
    (tmp_path / "file").write_text("")
    with pytest.raises(KeyFileError, match="cannot be"):
        LocalIssuer.open(tmp_path / "file" / "signing-key.pem")


def test_key_file_may_be_a_symlink(tmp_path: Path) -> None:
    kid = LocalIssuer.open(tmp_path / "mounted.pem").kid
    (tmp_path / "signing-key.pem").symlink_to(tmp_path / "mounted.pem")
    assert LocalIssuer.open(tmp_path / "signing-key.pem").kid == kid
    (tmp_path / "dangling.pem").symlink_to(tmp_path / "nowhere")
    with pytest.raises(KeyFileError, match="file that does not exist"):
        LocalIssuer.open(tmp_path / "dangling.pem")


async def test_admin_token_file_is_private_and_its_token_accepted(tmp_path: Path) -> None:
    issuer = LocalIssuer.open(tmp_path / "signing-key.pem", clock=FakeClock())
    path = tmp_path / "admin-token"
    path.write_text("old token, readable by all")
    path.chmod(0o644)
    issuer.write_admin_token(path)
    assert file_mode(path) == 0o600
    assert file_names(tmp_path) == ["admin-token", "signing-key.pem"]
    authenticator = Authenticator(AuthSettings(), issuer, FakeClock())
    assert await authenticator.verify_token(authorization_header(path.read_text())) == Caller(
        subject="local",
        client_id="local",
        zone_id="default",
        scopes=frozenset({LIFECYCLE, COORDINATOR_ADMIN, ADMIN, FLEET_EXEC}),
        sid="local",
        is_admin=True,
        is_local=True,
        issued_at=(NOW + 6) * 1000,
    )


async def test_admin_token_has_the_configured_lifecycle_scope(tmp_path: Path) -> None:
    issuer = LocalIssuer.open(tmp_path / "signing-key.pem", clock=FakeClock())
    issuer.write_admin_token(tmp_path / "admin-token", lifecycle_scope="fleet:run", ttl_seconds=60)
    clock = FakeClock()
    authenticator = Authenticator(AuthSettings(lifecycle_scope="fleet:run"), issuer, clock)
    header = authorization_header((tmp_path / "admin-token").read_text())
    authenticator.check_access(await authenticator.verify_token(header), LIFECYCLE, "any-zone")
    clock.now = NOW + 60
    assert authenticator.cached_caller(header) is None


def test_unwritable_admin_token_raises_and_leaves_no_file(tmp_path: Path) -> None:
    issuer = LocalIssuer.open(tmp_path / "signing-key.pem")
    (tmp_path / "admin-token").mkdir()
    with pytest.raises(KeyFileError, match="cannot be written"):
        issuer.write_admin_token(tmp_path / "admin-token")
    assert file_names(tmp_path) == ["admin-token", "signing-key.pem"]


async def test_tokens_are_trusted_by_replicas_and_not_by_other_servers(tmp_path: Path) -> None:
    one, other = LocalIssuer.open(tmp_path / "one.pem"), LocalIssuer.open(tmp_path / "other.pem")
    replica = LocalIssuer.open(tmp_path / "one.pem")
    header = authorization_header(one.mint(Grant(zone_id="z", client_id="c", subject="s"), 60))
    await Authenticator(AuthSettings(), replica).verify_token(header)
    with pytest.raises(Exception, match="does not trust"):
        await Authenticator(AuthSettings(), other).verify_token(header)


def test_derived_secret_depends_only_on_key_and_purpose(tmp_path: Path) -> None:
    first, same = [LocalIssuer.open(tmp_path / "key.pem") for _ in range(2)]
    other = LocalIssuer.open(tmp_path / "other.pem")
    derived = first.derive_secret("push secrets")
    assert len(derived) == 32
    assert same.derive_secret("push secrets") == derived
    assert (
        len({derived, first.derive_secret("seals"), first.derive_secret(""), other.derive_secret("push secrets")}) == 4
    )


def test_missing_secret_file_reads_as_none(tmp_path: Path) -> None:
    assert read_secret(tmp_path / "absent") is None
