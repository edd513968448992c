"""`qd audit verify` finds every alteration of the event log and names the first altered position."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import psycopg
import pytest

from quarterdeck.core.audit_verify import VerificationError, parse_anchor, verify
from quarterdeck.core.errors import Invalid, NotFound
from quarterdeck.http.auth import KeyFileError, LocalIssuer
from quarterdeck.maintenance.audit import AuditReport, newest_anchor, parse_anchors, select_trusted_keys, verify_log
from quarterdeck.store.interface import StoreError
from quarterdeck.store.postgres_roles import SERVER, SWEEP
from tests.cli.cli_support import Qd
from tests.support.audit_log import AuditLogHarness
from tests.support.eventually import eventually
from tests.support.log_tampering import TAMPERINGS, LogRows, first_difference, read_log, write_log
from tests.support.rounds import ROUNDS
from tests.support.runtime import DirectDatabase, open_runtime
from tests.support.server import Launch, Servers
from tests.support.spawn_load import SpawnLoad
from tests.support.zone import create_zone

KEY = "signing-key.pem"


@pytest.fixture
async def sealed_url(engine_url: str, tmp_path: Path) -> str:
    """A database with session events. Every event is sealed; retention has deleted the oldest."""
    async with open_runtime(engine_url) as runtime:
        await runtime.put_zone()
        harness = AuditLogHarness(runtime, tmp_path)
        for _ in range(5):
            root, *rest = await runtime.spawn_tree(3, 2)
            await runtime.suspend(rest[0])
            await runtime.resume(rest[0])
            await runtime.terminate(root)
            await harness.sealer.run_once(1_000)
        await harness.emit_and_seal(1, 40, 2)
        await harness.retention.run_once(1_000)
        await harness.sealer.run_once(1_000)
        await harness.retention.run_once(1)
        await harness.emit_and_seal(60)
    return engine_url


def verify_database(url: str, key: Path, *anchors: str) -> AuditReport:
    return verify_log(url, select_trusted_keys([], key), parse_anchors(anchors))


def test_verify_finds_every_random_tampering_and_names_its_first_position(sealed_url: str, tmp_path: Path) -> None:
    log = read_log(sealed_url)
    assert 0 < log.attested_floor < log.sealed_pos
    trust = select_trusted_keys([], tmp_path / KEY).verify
    anchor = parse_anchor(log.anchor)
    assert anchor
    assert verify(log.verification_input(), trust, [anchor]).removed > 0
    for tampering in TAMPERINGS:
        found = 0
        for number in range(1_000):
            altered = TAMPERINGS[tampering](log, Random(f"{tampering} {number}"))
            if not (positions := first_difference(log, altered)):
                continue
            with pytest.raises(VerificationError) as error:
                verify(altered.verification_input(), trust, [anchor])
            assert error.value.pos in positions, f"{tampering} {number}: {error.value.message}"
            found += 1
            if found == 200:
                break
        assert found == 200


def test_verify_log_finds_every_change_made_in_the_database(sealed_url: str, tmp_path: Path) -> None:
    log = read_log(sealed_url)
    for tampering, number in ((tampering, number) for tampering in TAMPERINGS for number in range(3 * ROUNDS)):
        altered = TAMPERINGS[tampering](log, Random(f"in the database: {tampering} {number}"))
        positions = first_difference(log, altered)
        write_log(sealed_url, altered)
        report = verify_database(sealed_url, tmp_path / KEY, log.anchor)
        assert report.is_proven is not bool(positions), report
        assert not positions or report.pos in positions, f"{tampering} {number}: {report.alteration}"
    write_log(sealed_url, log)
    assert verify_database(sealed_url, tmp_path / KEY, log.anchor).is_proven


def test_report_without_an_anchor_states_what_is_not_proven(sealed_url: str, tmp_path: Path) -> None:
    log = read_log(sealed_url)
    report = verify_database(sealed_url, tmp_path / KEY)
    assert report.is_proven
    assert "No anchor was given" in report.text()
    assert "No anchor" not in verify_database(sealed_url, tmp_path / KEY, log.anchor).text()
    truncated = LogRows(int(str(log.seals[-2][2])), log.attested_floor, log.seals[:-1], log.events[:-60])
    write_log(sealed_url, truncated)
    assert verify_database(sealed_url, tmp_path / KEY).is_proven, "a truncated log verifies without an anchor"
    assert verify_database(sealed_url, tmp_path / KEY, log.anchor).pos == truncated.sealed_pos + 1


def test_newest_anchor_names_the_last_seal(sealed_url: str, engine_url: str) -> None:
    log = read_log(sealed_url)
    assert newest_anchor(sealed_url) == log.anchor
    write_log(engine_url, LogRows(0, 0, (), ()))
    with pytest.raises(NotFound, match="There are no seals yet"):
        newest_anchor(engine_url)


# -- keys


def test_trusted_keys_are_read_from_files_and_an_unknown_signer_fails_the_report(
    sealed_url: str, tmp_path: Path
) -> None:
    own, foreign = tmp_path / KEY, tmp_path / "foreign.pem"
    LocalIssuer.open(foreign)
    published = tmp_path / "jwks.json"
    published.write_text(json.dumps(LocalIssuer.open(own).jwks()))
    for key_files in ([str(own)], [str(published)], [str(foreign), str(published)]):
        assert verify_log(sealed_url, select_trusted_keys(key_files, tmp_path / "absent.pem")).is_proven
    report = verify_log(sealed_url, select_trusted_keys([str(foreign)], own))
    assert (report.is_proven, report.seal) == (False, 1)
    assert LocalIssuer.open(own).kid in str(report.alteration)
    with pytest.raises(KeyFileError, match="--key"):
        select_trusted_keys([], tmp_path / "absent.pem")
    (tmp_path / "noise").write_text("noise")
    for name in ("noise", "missing"):
        with pytest.raises(KeyFileError, match=name):
            select_trusted_keys([str(tmp_path / name)], own)


def test_anchors_are_read_from_a_file_line_by_line(tmp_path: Path) -> None:
    one, two = f"1:{'a' * 64}", "b" * 64
    file = tmp_path / "anchors"
    file.write_text(f"# one per day\n{one}\n\n{two}\n")
    assert [str(anchor) for anchor in parse_anchors([str(file), one])] == [one, two, one]
    for content in ("", "# nothing\n", f"{one}\nnot an anchor\n"):
        file.write_text(content)
        with pytest.raises(Invalid, match="neither an anchor"):
            parse_anchors([str(file)])
    with pytest.raises(Invalid, match="neither an anchor"):
        parse_anchors(["2:abc"])


# -- engine-specific cases


@pytest.mark.parametrize(
    "value", ["x'616263'", "cast(x'ff61' as text)", "cast(x'' as text)", "'a' || char(0) || 'b'", "1.5"]
)
@pytest.mark.parametrize("column", ["actor", "data", "trace", "at"])
async def test_column_value_no_server_writes_is_reported_at_its_position(
    sqlite_url: str, tmp_path: Path, column: str, value: str
) -> None:
    async with open_runtime(sqlite_url) as runtime:
        await runtime.put_zone()
        harness = AuditLogHarness(runtime, tmp_path)
        await harness.emit_and_seal(10, 10)
        await harness.emit(5)
    original = read_log(sqlite_url)
    # An unsealed event may contain any valid text. Invalid text and a time that is no integer are still reported.
    unsealed = {23} if column == "at" or value.startswith(("x", "cast(x'ff")) else set()
    for pos in {4, 14} | unsealed:
        DirectDatabase(sqlite_url).execute(f"update events set {column} = {value} where pos = ?", pos)
        report = verify_database(sqlite_url, tmp_path / KEY)
        assert (report.is_proven, report.pos) == (False, pos), report
        write_log(sqlite_url, original)


def test_seal_with_invalid_utf8_is_reported(sqlite_url: str, tmp_path: Path) -> None:
    LocalIssuer.open(tmp_path / KEY)
    DirectDatabase(sqlite_url).execute(
        "insert into seals values (1, 1, 0, 0, cast(x'ff' as text), '', '', '', '', '', 1)"
    )
    assert verify_database(sqlite_url, tmp_path / KEY).seal == 1


@pytest.fixture
def logins(postgres_url: str) -> Iterator[dict[str, str]]:
    """URLs of two logins that own no tables: one has the server and sweep roles, one only the server role."""
    roles_by_login = {f"qd_login_{secrets.token_hex(4)}": roles for roles in ((SERVER, SWEEP), (SERVER,))}
    admin, password = DirectDatabase(postgres_url), secrets.token_hex(8)
    parts = urlsplit(postgres_url)
    for name, roles in roles_by_login.items():
        admin.execute(f"create role {name} login password '{password}'")
        admin.execute(f"grant {', '.join(roles)} to {name}")
    try:
        host = parts.netloc.rpartition("@")[2]
        yield {
            SWEEP if SWEEP in roles else SERVER: parts._replace(netloc=f"{name}:{password}@{host}").geturl()
            for name, roles in roles_by_login.items()
        }
    finally:
        for name in roles_by_login:
            admin.execute(f"drop role {name}")


async def test_login_confined_by_row_security_cannot_verify_on_postgresql(
    postgres_url: str, logins: dict[str, str], tmp_path: Path
) -> None:
    async with open_runtime(postgres_url) as runtime:
        await runtime.put_zone()
        await AuditLogHarness(runtime, tmp_path).emit_and_seal(10)
    assert verify_database(logins[SWEEP], tmp_path / KEY).is_proven
    with pytest.raises(StoreError, match=r"hides some rows.* GRANT quarterdeck_sweep TO"):
        verify_database(logins[SERVER], tmp_path / KEY)
    with psycopg.connect(postgres_url) as connection:
        connection.execute("drop schema public cascade")
    with pytest.raises(StoreError, match="no schema yet"):
        verify_database(postgres_url, tmp_path / KEY)


def test_missing_unreadable_or_empty_database_raises_store_error(tmp_path: Path) -> None:
    LocalIssuer.open(tmp_path / KEY)
    with pytest.raises(StoreError, match="There is no database at"):
        verify_database(f"sqlite:///{tmp_path / 'missing.db'}", tmp_path / KEY)
    (tmp_path / "noise.db").write_bytes(b"noise" * 1_000)
    with pytest.raises(StoreError, match="cannot be read as a SQLite database"):
        verify_database(f"sqlite:///{tmp_path / 'noise.db'}", tmp_path / KEY)
    (tmp_path / "empty.db").touch()
    with pytest.raises(StoreError, match="no schema yet"):
        verify_database(f"sqlite:///{tmp_path / 'empty.db'}", tmp_path / KEY)


# -- the command


async def test_log_verifies_during_load_and_after_shutdown_until_it_is_altered(
    servers: Servers, launch: Launch
) -> None:
    server = await servers.start(launch.with_environment(QD_SEAL_INTERVAL_MS="50"))
    qd = Qd(launch.data, QD_DATABASE_URL=launch.database_url)
    load = SpawnLoad(await create_zone(server))
    anchors: list[str] = []
    for _ in range(ROUNDS):
        await load.wait_for_acknowledged(100)

        async def is_sealed() -> bool:
            return DirectDatabase(launch.database_url).count("seals") > len(anchors)

        await eventually(is_sealed, "another seal was written")
        anchors.append(qd.run("audit", "anchor"))
        report = qd.run_json("audit", "verify", *(f"--anchor={anchor}" for anchor in anchors))
        assert report["proven"] is True
        assert report["anchors"] == anchors
        assert report["seals"] >= len(anchors)
    await load.stop()
    assert await server.stop() == 0
    report = qd.run_json("audit", "verify", "--anchor", anchors[-1])
    assert report["events"] + report["unproven"] == DirectDatabase(launch.database_url).scalar(
        "select pos from log_head"
    )

    pos = Random(1).randint(1, report["last_pos"])
    DirectDatabase(launch.database_url).execute("update events set actor = 'other-subject' where pos = ?", pos)
    done = qd("audit", "verify", "--anchor", anchors[-1])
    assert done.returncode == 1
    assert done.stdout.startswith(f"altered: The event at position {pos} is not the sealed one (seal ")
    done = qd("audit", "verify", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["altered"]["pos"] == pos


def test_wrong_audit_arguments_exit_with_an_error_message(sqlite_url: str, tmp_path: Path) -> None:
    qd = Qd(tmp_path)
    for arguments, code, message in (
        (("audit", "anchor"), 4, "There are no seals yet"),
        (("audit", "verify"), 1, "There is no signing key at"),
        (("audit", "verify", "--key", "missing.pem"), 1, "missing.pem cannot be read"),
        (("audit", "verify", "--database", f"sqlite:///{tmp_path}/none.db"), 1, "There is no"),
    ):
        done = qd(*arguments)
        assert (done.returncode, done.stdout) == (code, "")
        assert message in done.stderr
    LocalIssuer.open(tmp_path / KEY)
    assert "neither an anchor" in qd("audit", "verify", "--anchor", "17").stderr
    assert "nothing is proven" in qd.run("audit", "verify")
