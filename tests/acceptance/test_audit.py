"""`qd audit verify`: whatever is done to the log in the database, it is found, and the first row of it named."""

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
    """A database in which things of all kinds have happened, sealed to the last event but for the oldest, which
    retention has removed."""
    async with open_runtime(engine_url) as keel:
        await keel.put_zone()
        keeper = AuditLogHarness(keel, tmp_path)
        for _ in range(5):
            root, *rest = await keel.spawn_tree(3, 2)
            await keel.suspend(rest[0])
            await keel.resume(rest[0])
            await keel.terminate(root)
            await keeper.sealer.run_once(1_000)
        await keeper.emit_and_seal(1, 40, 2)
        await keeper.retention.run_once(1_000)
        await keeper.sealer.run_once(1_000)
        await keeper.retention.run_once(1)
        await keeper.emit_and_seal(60)
    return engine_url


def verdict_on(url: str, key: Path, *anchors: str) -> AuditReport:
    return verify_log(url, select_trusted_keys([], key), parse_anchors(anchors))


def test_a_thousand_random_changes_of_a_real_log_are_all_found_and_their_first_rows_named(
    sealed_url: str, tmp_path: Path
) -> None:
    log = read_log(sealed_url)
    assert 0 < log.attested_floor < log.sealed_pos
    trust = select_trusted_keys([], tmp_path / KEY).verify
    anchor = parse_anchor(log.anchor)
    assert anchor
    assert verify(log.verification_input(), trust, [anchor]).removed > 0
    for way in TAMPERINGS:
        found = 0
        for number in range(1_000):
            wrong = TAMPERINGS[way](log, Random(f"{way} {number}"))
            if not (named := first_difference(log, wrong)):
                continue
            with pytest.raises(VerificationError) as verdict:
                verify(wrong.verification_input(), trust, [anchor])
            assert verdict.value.pos in named, f"{way} {number}: {verdict.value.message}"
            found += 1
            if found == 200:
                break
        assert found == 200


def test_changes_made_in_the_database_itself_are_all_found(sealed_url: str, tmp_path: Path) -> None:
    log = read_log(sealed_url)
    for way, number in ((way, number) for way in TAMPERINGS for number in range(3 * ROUNDS)):
        wrong = TAMPERINGS[way](log, Random(f"in the database: {way} {number}"))
        named = first_difference(log, wrong)
        write_log(sealed_url, wrong)
        verdict = verdict_on(sealed_url, tmp_path / KEY, log.anchor)
        assert verdict.is_proven is not bool(named), verdict
        assert not named or verdict.pos in named, f"{way} {number}: {verdict.alteration}"
    write_log(sealed_url, log)
    assert verdict_on(sealed_url, tmp_path / KEY, log.anchor).is_proven


def test_without_an_anchor_it_says_what_it_cannot_prove(sealed_url: str, tmp_path: Path) -> None:
    log = read_log(sealed_url)
    plain = verdict_on(sealed_url, tmp_path / KEY)
    assert plain.is_proven
    assert "No anchor was given" in plain.text()
    assert "No anchor" not in verdict_on(sealed_url, tmp_path / KEY, log.anchor).text()
    short = LogRows(int(str(log.seals[-2][2])), log.attested_floor, log.seals[:-1], log.events[:-60])
    write_log(sealed_url, short)
    assert verdict_on(sealed_url, tmp_path / KEY).is_proven, "which is why it says so"
    assert verdict_on(sealed_url, tmp_path / KEY, log.anchor).pos == short.sealed_pos + 1


def test_the_newest_seal_is_what_is_to_be_noted(sealed_url: str, engine_url: str) -> None:
    log = read_log(sealed_url)
    assert newest_anchor(sealed_url) == log.anchor
    write_log(engine_url, LogRows(0, 0, (), ()))
    with pytest.raises(NotFound, match="Nothing is sealed yet"):
        newest_anchor(engine_url)


# -- keys


def test_keys_may_be_named_and_one_that_is_not_is_a_failure_with_a_sentence(sealed_url: str, tmp_path: Path) -> None:
    own, foreign = tmp_path / KEY, tmp_path / "foreign.pem"
    LocalIssuer.open(foreign)
    published = tmp_path / "jwks.json"
    published.write_text(json.dumps(LocalIssuer.open(own).jwks()))
    for named in ([str(own)], [str(published)], [str(foreign), str(published)]):
        assert verify_log(sealed_url, select_trusted_keys(named, tmp_path / "nowhere")).is_proven
    verdict = verify_log(sealed_url, select_trusted_keys([str(foreign)], own))
    assert (verdict.is_proven, verdict.seal) == (False, 1)
    assert LocalIssuer.open(own).kid in str(verdict.alteration)
    with pytest.raises(KeyFileError, match="--key"):
        select_trusted_keys([], tmp_path / "nowhere")
    (tmp_path / "noise").write_text("noise")
    for wrong in ("noise", "missing"):
        with pytest.raises(KeyFileError, match=wrong):
            select_trusted_keys([str(tmp_path / wrong)], own)


def test_anchors_may_stand_in_a_file_line_by_line(tmp_path: Path) -> None:
    one, two = f"1:{'a' * 64}", "b" * 64
    file = tmp_path / "anchors"
    file.write_text(f"# noted daily\n{one}\n\n{two}\n")
    assert [str(anchor) for anchor in parse_anchors([str(file), one])] == [one, two, one]
    for content in ("", "# nothing\n", f"{one}\nnot an anchor\n"):
        file.write_text(content)
        with pytest.raises(Invalid, match="neither an anchor"):
            parse_anchors([str(file)])
    with pytest.raises(Invalid, match="neither an anchor"):
        parse_anchors(["2:abc"])


# -- what only one of the engines can hold


@pytest.mark.parametrize(
    "value", ["x'616263'", "cast(x'ff61' as text)", "cast(x'' as text)", "'a' || char(0) || 'b'", "1.5"]
)
@pytest.mark.parametrize("column", ["actor", "data", "trace", "at"])
async def test_a_value_that_no_server_writes_is_named_and_no_crash(
    sqlite_url: str, tmp_path: Path, column: str, value: str
) -> None:
    async with open_runtime(sqlite_url) as keel:
        await keel.put_zone()
        keeper = AuditLogHarness(keel, tmp_path)
        await keeper.emit_and_seal(10, 10)
        await keeper.emit(5)
    honest = read_log(sqlite_url)
    # Not yet sealed, one text is as good as another; what is none, or no number, is not.
    unsealed = {23} if column == "at" or value.startswith(("x", "cast(x'ff")) else set()
    for pos in {4, 14} | unsealed:
        DirectDatabase(sqlite_url).execute(f"update events set {column} = {value} where pos = ?", pos)
        verdict = verdict_on(sqlite_url, tmp_path / KEY)
        assert (verdict.is_proven, verdict.pos) == (False, pos), verdict
        write_log(sqlite_url, honest)


def test_text_that_is_none_in_a_seal_is_named_and_no_crash(sqlite_url: str, tmp_path: Path) -> None:
    LocalIssuer.open(tmp_path / KEY)
    DirectDatabase(sqlite_url).execute(
        "insert into seals values (1, 1, 0, 0, cast(x'ff' as text), '', '', '', '', '', 1)"
    )
    assert verdict_on(sqlite_url, tmp_path / KEY).seal == 1


@pytest.fixture
def logins(postgres_url: str) -> Iterator[dict[str, str]]:
    """The URLs of two logins that own nothing: one may act as the server and the sweeps, one as the server only."""
    made = {f"qd_login_{secrets.token_hex(4)}": roles for roles in ((SERVER, SWEEP), (SERVER,))}
    side, password = DirectDatabase(postgres_url), secrets.token_hex(8)
    parts = urlsplit(postgres_url)
    for name, roles in made.items():
        side.execute(f"create role {name} login password '{password}'")
        side.execute(f"grant {', '.join(roles)} to {name}")
    try:
        host = parts.netloc.rpartition("@")[2]
        yield {
            SWEEP if SWEEP in roles else SERVER: parts._replace(netloc=f"{name}:{password}@{host}").geturl()
            for name, roles in made.items()
        }
    finally:
        for name in made:
            side.execute(f"drop role {name}")


async def test_on_postgresql_whoever_would_see_only_a_part_is_refused(
    postgres_url: str, logins: dict[str, str], tmp_path: Path
) -> None:
    async with open_runtime(postgres_url) as keel:
        await keel.put_zone()
        await AuditLogHarness(keel, tmp_path).emit_and_seal(10)
    assert verdict_on(logins[SWEEP], tmp_path / KEY).is_proven
    with pytest.raises(StoreError, match=r"only a part of the rows.* GRANT quarterdeck_sweep TO"):
        verdict_on(logins[SERVER], tmp_path / KEY)
    with psycopg.connect(postgres_url) as connection:
        connection.execute("drop schema public cascade")
    with pytest.raises(StoreError, match="no schema yet"):
        verdict_on(postgres_url, tmp_path / KEY)


def test_what_is_no_database_of_ours_is_a_sentence(tmp_path: Path) -> None:
    LocalIssuer.open(tmp_path / KEY)
    with pytest.raises(StoreError, match="There is no database at"):
        verdict_on(f"sqlite:///{tmp_path / 'missing.db'}", tmp_path / KEY)
    (tmp_path / "noise.db").write_bytes(b"noise" * 1_000)
    with pytest.raises(StoreError, match="cannot be read as a SQLite database"):
        verdict_on(f"sqlite:///{tmp_path / 'noise.db'}", tmp_path / KEY)
    (tmp_path / "empty.db").touch()
    with pytest.raises(StoreError, match="no schema yet"):
        verdict_on(f"sqlite:///{tmp_path / 'empty.db'}", tmp_path / KEY)


# -- the command


async def test_beside_a_server_under_load_and_after_it_the_log_is_proved(servers: Servers, launch: Launch) -> None:
    server = await servers.start(launch.with_environment(QD_SEAL_INTERVAL_MS="50"))
    qd = Qd(launch.data, QD_DATABASE_URL=launch.database_url)
    load = SpawnLoad(await create_zone(server))
    noted: list[str] = []
    for _ in range(ROUNDS):
        await load.wait_for_acknowledged(100)

        async def is_sealed() -> bool:
            return DirectDatabase(launch.database_url).count("seals") > len(noted)

        await eventually(is_sealed, "more was sealed")
        noted.append(qd.run("audit", "anchor"))
        told = qd.run_json("audit", "verify", *(f"--anchor={anchor}" for anchor in noted))
        assert told["proven"] is True
        assert told["anchors"] == noted
        assert told["seals"] >= len(noted)
    await load.stop()
    assert await server.stop() == 0
    told = qd.run_json("audit", "verify", "--anchor", noted[-1])
    assert told["events"] + told["unproven"] == DirectDatabase(launch.database_url).scalar("select pos from log_head")

    pos = Random(1).randint(1, told["last_pos"])
    DirectDatabase(launch.database_url).execute("update events set actor = 'nobody' where pos = ?", pos)
    done = qd("audit", "verify", "--anchor", noted[-1])
    assert done.returncode == 1
    assert done.stdout.startswith(f"altered: The event at position {pos} is not the one that was sealed (seal ")
    done = qd("audit", "verify", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["altered"]["pos"] == pos


def test_mistakes_on_the_command_line_are_sentences(sqlite_url: str, tmp_path: Path) -> None:
    qd = Qd(tmp_path)
    for words, code, told in (
        (("audit", "anchor"), 4, "Nothing is sealed yet"),
        (("audit", "verify"), 1, "There is no signing key at"),
        (("audit", "verify", "--key", "missing.pem"), 1, "missing.pem cannot be read"),
        (("audit", "verify", "--database", f"sqlite:///{tmp_path}/none.db"), 1, "There is no"),
    ):
        done = qd(*words)
        assert (done.returncode, done.stdout) == (code, "")
        assert told in done.stderr
    LocalIssuer.open(tmp_path / KEY)
    assert "neither an anchor" in qd("audit", "verify", "--anchor", "17").stderr
    assert "nothing is proved" in qd.run("audit", "verify")
