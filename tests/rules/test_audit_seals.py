"""Seals and verification of the event log: every change made without the key is found, with its first row."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

from quarterdeck.core.audit_seal import (
    InvalidEventRow,
    Row,
    Seal,
    SealEnd,
    SealInput,
    create_seal,
    hash_events,
    hash_seal,
    next_floor,
    signing_message,
)
from quarterdeck.core.audit_verify import (
    Anchor,
    VerificationError,
    VerificationResult,
    VerifySignature,
    parse_anchor,
    verify,
)
from quarterdeck.http.auth import LocalIssuer
from quarterdeck.maintenance.audit_keys import TrustedKeys
from tests.support.log_tampering import TAMPERINGS, LogRows, first_difference

SIGNING_KEY, OTHER_KEY = (generate_private_key(SECP256R1()) for _ in range(2))
SIGNER = LocalIssuer(SIGNING_KEY, None)
OTHER_SIGNER = LocalIssuer(OTHER_KEY, None)
VERIFY_SIGNATURE: VerifySignature = TrustedKeys([SIGNING_KEY.public_key()]).verify


def event(pos: int, **values: object) -> Row:
    defaults: dict[str, object] = {"id": f"e{pos}", "zone_id": "z", "type": "session.spawn", "subject": f"s{pos % 5}"}
    defaults |= {"actor": "tester", "from_state": None, "to_state": "active", "data": '{"n":1}', "trace": None}
    return (pos, *(defaults | {"at": 1_000 + pos} | values).values())


def sealed_log(*sizes: int, unsealed: int = 0, floors: tuple[int, ...] = (), signer: LocalIssuer = SIGNER) -> LogRows:
    """A log with one seal per size, over that many events, and `unsealed` events after the last seal."""
    seals: list[Seal] = []
    events: list[Row] = []
    for number, size in enumerate(sizes):
        new_events = [event(len(events) + 1 + n) for n in range(size)]
        floor = floors[number] if number < len(floors) else (seals[-1].floor if seals else 0)
        seal_input = SealInput(len(events) + 1, hash_events(new_events), floor)
        seals.append(create_seal(seal_input, seals[-1] if seals else None, 5_000 + number, signer))
        events += new_events
    events += [event(len(events) + 1 + n) for n in range(unsealed)]
    floor = seals[-1].floor if seals else 0
    return LogRows(len(events), floor, tuple(msgspec.structs.astuple(seal) for seal in seals), tuple(events))


def after_retention(log: LogRows, floor: int) -> LogRows:
    """The log without the events up to the floor."""
    return log.with_events([row for row in log.events if int(str(row[0])) > floor])


def anchor(log: LogRows) -> Anchor:
    parsed = parse_anchor(log.anchor)
    assert parsed
    return parsed


def verify_log(
    log: LogRows, *anchors: Anchor, verify_signature: VerifySignature = VERIFY_SIGNATURE
) -> VerificationResult:
    return verify(log.verification_input(), verify_signature, anchors)


def verification_error(
    log: LogRows, *anchors: Anchor, verify_signature: VerifySignature = VERIFY_SIGNATURE
) -> VerificationError:
    with pytest.raises(VerificationError) as raised:
        verify_log(log, *anchors, verify_signature=verify_signature)
    return raised.value


# -- logs that verify


def test_unaltered_log_verifies_with_its_anchor() -> None:
    log = sealed_log(10, 1, 30, 0, unsealed=4)
    result = verify_log(log, anchor(log))
    assert (result.seals, result.events, result.last_pos, result.unproven, result.unproven_since) == (
        4,
        41,
        41,
        4,
        1_042,
    )
    assert (result.newest, result.kids, result.removed) == (log.anchor, [SIGNER.kid], 0)


def test_empty_and_unsealed_logs_verify_without_proving_events() -> None:
    assert verify_log(LogRows(0, 0, (), ())) == VerificationResult()
    assert verify_log(sealed_log(unsealed=3)) == VerificationResult(unproven=3, unproven_since=1_001)


def test_only_events_at_or_below_the_attested_floor_may_be_missing() -> None:
    log = sealed_log(10, 10, 10, 0, floors=(0, 0, 0, 20))
    for floor in range(21):
        result = verify_log(after_retention(log, floor), anchor(log))
        assert (result.removed, result.events, result.floor) == (floor, 30 - floor, 20)
    assert verification_error(after_retention(log, 21)).pos == 21


def test_all_events_may_be_missing_if_a_seal_attests_the_floor() -> None:
    log = sealed_log(5, 5, 0, 0, floors=(0, 0, 5, 10))
    assert verify_log(after_retention(log, 10)).removed == 10


def test_remaining_events_below_the_floor_must_match_their_seal() -> None:
    log = after_retention(sealed_log(10, 10, 10, 0, floors=(0, 0, 0, 20)), 5)
    with_gap = log.with_events([row for row in log.events if row[0] != 12])
    assert verification_error(with_gap).pos == 12
    assert verification_error(log.with_events([event(3), *log.events])).pos == 4, (
        "event 3 is present again, event 4 is missing"
    )
    assert verification_error(log.with_events([event(5, actor="x"), *log.events])).pos == 5
    edited = [event(12, actor="x") if row[0] == 12 else row for row in log.events]
    assert verification_error(log.with_events(edited)).pos == 12


def test_unattested_floor_does_not_excuse_missing_events() -> None:
    log = sealed_log(10, 10, 10)
    assert verification_error(replace(after_retention(log, 10), floor=10)).pos == 1


# -- tampering


@pytest.mark.parametrize("tampering", TAMPERINGS)
@pytest.mark.parametrize(
    "log",
    [sealed_log(40, 1, 25, 60), after_retention(sealed_log(40, 1, 25, 60, 0, floors=(0, 0, 0, 0, 41)), 17)],
    ids=["complete", "after-retention"],
)
def test_every_kind_of_tampering_is_found_and_its_first_row_named(log: LogRows, tampering: str) -> None:
    found = 0
    for number in range(400):
        tampered = TAMPERINGS[tampering](log, Random(f"{tampering} {number}"))
        expected = first_difference(log, tampered)
        if not expected:
            assert verify_log(tampered, anchor(log))
            continue
        found += 1
        error = verification_error(tampered, anchor(log))
        assert error.pos in expected, f"{tampering} {number}: {error.message}"
    assert found > 300


def test_first_of_several_changes_is_named() -> None:
    log = sealed_log(40, 1, 25, 60)
    for number in range(400):
        rng = Random(number)
        tampered = log
        for tampering in rng.sample(["edit", "delete", "insert", "reorder"], 3):
            tampered = TAMPERINGS[tampering](tampered, rng)
        expected = first_difference(log, tampered)
        if expected:
            assert verification_error(tampered, anchor(log)).pos in expected


# -- values and rows


@pytest.mark.parametrize(
    "values",
    [
        {"actor": base64.b64decode("abcd")},
        {"from_state": ""},
        {"trace": "null"},
        {"at": 1_012.0},
        {"at": "1012"},
        {"data": b'{"n":1}'},
        {"data": '{"n":1} '},
        {"data": '{"n":1.0}'},
    ],
)
def test_value_with_another_type_or_encoding_fails_verification(values: dict[str, object]) -> None:
    log = sealed_log(10, 10)
    original = event(12, actor="abcd")
    rows = [original if row[0] == 12 else row for row in log.events]
    first = create_seal(SealInput(1, hash_events(rows[:10]), 0), None, 1, SIGNER)
    second = create_seal(SealInput(11, hash_events(rows[10:]), 0), first, 2, SIGNER)
    valid = replace(log, seals=(msgspec.structs.astuple(first), msgspec.structs.astuple(second))).with_events(rows)
    assert verify_log(valid).events == 20
    altered = valid.with_events([event(12, **{"actor": "abcd"} | values) if row[0] == 12 else row for row in rows])
    assert verification_error(altered).pos == 12


def test_invalid_event_row_is_neither_sealed_nor_verified() -> None:
    with pytest.raises(InvalidEventRow) as raised:
        hash_events([event(1), event(2, data=b"{}")])
    assert raised.value.pos == 2
    assert verification_error(sealed_log(3).with_events([*sealed_log(3).events, event(4, at=None)])).pos == 4
    assert (
        verification_error(replace(sealed_log(3, unsealed=1), events=(*sealed_log(3).events, event(4, at=None)))).pos
        == 4
    )


def test_second_row_at_one_position_fails_verification() -> None:
    log = sealed_log(5, 5, unsealed=3)
    for pos in (4, 12):
        duplicated = log.with_events([*log.events, event(pos)])
        assert (verification_error(duplicated).pos, verification_error(duplicated).message) == (
            pos,
            f"There is a second row at position {pos}.",
        )


# -- seals


def with_seal(log: LogRows, number: int, change: Callable[[Seal], Seal]) -> LogRows:
    seals = [msgspec.convert(row, Seal) for row in log.seals]
    seals[number - 1] = change(seals[number - 1])
    return replace(log, seals=tuple(msgspec.structs.astuple(seal) for seal in seals))


SEAL_CHANGES: dict[str, object] = {
    "first_pos": 12,
    "last_pos": 21,
    "floor": 10,
    "digest": "0" * 64,
    "leaves": "AAAAAAAAAAA=",
    "previous": "0" * 64,
    "hash": "0" * 64,
    "kid": OTHER_SIGNER.kid,
    "signature": base64.b64encode(bytes(64)).decode(),
    "at": 1,
}


@pytest.mark.parametrize("column", SEAL_CHANGES)
def test_altered_seal_is_named_even_with_a_recomputed_hash(column: str) -> None:
    log = sealed_log(10, 10, 10)

    def change(seal: Seal) -> Seal:
        return msgspec.structs.replace(seal, **{column: SEAL_CHANGES[column]})

    def change_and_rehash(seal: Seal) -> Seal:
        return msgspec.structs.replace(change(seal), hash=hash_seal(change(seal)))

    for altered in (with_seal(log, 2, change), with_seal(log, 2, change_and_rehash)):
        if altered != log:
            assert (verification_error(altered).seal, verification_error(altered).pos) == (2, 11)


@pytest.mark.parametrize("value", ["", "!", "AAAA", "é"])
@pytest.mark.parametrize("column", ["leaves", "signature"])
def test_undecodable_seal_column_fails_verification_without_a_crash(column: str, value: str) -> None:
    def change(seal: Seal) -> Seal:
        changed = msgspec.structs.replace(seal, **{column: value})
        return msgspec.structs.replace(changed, hash=hash_seal(changed))

    assert verification_error(with_seal(sealed_log(10, 10, 10), 2, change)).seal == 2


def test_seal_value_of_a_wrong_type_fails_verification_without_a_crash() -> None:
    log = sealed_log(10, 10)
    for index in range(1, 11):
        row = log.seals[0]
        altered = replace(log, seals=((*row[:index], b"x", *row[index + 1 :]), log.seals[1]))
        assert verification_error(altered).seal == 1
    assert verification_error(replace(log, seals=(log.seals[0], (2, None, *log.seals[1][2:])))).seal == 2


def test_missing_duplicated_or_swapped_seal_is_named() -> None:
    log = sealed_log(10, 10, 10)
    first, second, third = log.seals
    assert (
        verification_error(replace(log, seals=(first, third))).seal,
        verification_error(replace(log, seals=(first, third))).pos,
    ) == (2, 11)
    assert verification_error(replace(log, seals=(second, third))).pos == 1
    assert verification_error(replace(log, seals=(first, first, second, third))).seal == 1
    swapped = ((1, *second[1:]), (2, *first[1:]), third)
    assert verification_error(replace(log, seals=swapped)).pos == 1


def test_log_head_must_agree_with_events_and_seals() -> None:
    log = sealed_log(10, 10)
    assert "log_head" in verification_error(replace(log, head=19)).message
    assert verification_error(replace(log, head=21)).pos == 21
    assert "floor" in verification_error(replace(log, floor=30)).message
    assert "floor" in verification_error(replace(sealed_log(10, 10, 0, floors=(0, 0, 10)), floor=0)).message
    for head in (None, ("x", 0), (1, None)):
        with pytest.raises(VerificationError, match="log_head"):
            verify(replace(log.verification_input(), head=head), VERIFY_SIGNATURE)


# -- keys and anchors


def test_chain_signed_by_an_untrusted_key_is_refused_with_its_kid() -> None:
    forged = sealed_log(10, 10, signer=OTHER_SIGNER)
    error = verification_error(forged)
    assert error.seal == 1
    assert OTHER_SIGNER.kid in error.message
    verify_both: VerifySignature = TrustedKeys([SIGNING_KEY.public_key(), OTHER_KEY.public_key()]).verify
    assert verify_log(forged, verify_signature=verify_both).kids == [OTHER_SIGNER.kid]


def test_seal_signed_by_another_key_under_a_trusted_kid_is_refused() -> None:
    forged = with_seal(
        sealed_log(10, signer=OTHER_SIGNER), 1, lambda seal: msgspec.structs.replace(seal, kid=SIGNER.kid)
    )
    assert verification_error(forged).seal == 1

    def change_and_sign(seal: Seal) -> Seal:
        changed = msgspec.structs.replace(seal, kid=SIGNER.kid)
        changed = msgspec.structs.replace(changed, hash=hash_seal(changed))
        signature = base64.b64encode(OTHER_SIGNER.sign(signing_message(changed))).decode()
        return msgspec.structs.replace(changed, signature=signature)

    assert "did not make" in verification_error(with_seal(sealed_log(10), 1, change_and_sign)).message


def test_only_an_anchor_reveals_truncation_together_with_the_seals() -> None:
    log = sealed_log(10, 10, 10)
    truncated = replace(log, seals=log.seals[:2], head=20).with_events(log.events[:20])
    assert verify_log(truncated).events == 20
    error = verification_error(truncated, anchor(log))
    assert (error.pos, error.seal) == (21, 3)
    emptied = LogRows(0, 0, (), ())
    assert verify_log(emptied) == VerificationResult()
    assert verification_error(emptied, anchor(log)).pos == 1


def test_anchor_reveals_a_chain_rebuilt_with_the_key() -> None:
    log = sealed_log(10, 10, 10)
    rows = [event(n, actor="x") if n == 15 else event(n) for n in range(1, 31)]
    new_seals: list[Seal] = []
    for number in range(3):
        seal_input = SealInput(number * 10 + 1, hash_events(rows[number * 10 : number * 10 + 10]), 0)
        new_seals.append(create_seal(seal_input, new_seals[-1] if new_seals else None, 5_000 + number, SIGNER))
    rebuilt = replace(log, seals=tuple(msgspec.structs.astuple(seal) for seal in new_seals)).with_events(rows)
    assert verify_log(rebuilt).events == 30
    recorded_anchor = Anchor(str(log.seals[1][7]), 2)
    assert (verification_error(rebuilt, recorded_anchor).pos, verification_error(rebuilt, recorded_anchor).seal) == (
        11,
        2,
    )
    assert verification_error(rebuilt, Anchor(recorded_anchor.hash)).pos == 31, (
        "an anchor without a number has no position"
    )


def test_every_anchor_must_be_in_the_chain() -> None:
    log = sealed_log(10, 10, 10)
    anchors = [Anchor(str(row[7]), int(str(row[0]))) for row in log.seals]
    assert verify_log(log, *anchors, Anchor(anchors[1].hash)).events == 30
    assert verification_error(log, *anchors, Anchor("0" * 64)).pos == 31
    assert verification_error(log, Anchor(anchors[0].hash, 2)).seal == 2


@pytest.mark.parametrize("text", ["", "x", "1:", f"1:{'A' * 64}", f"-1:{'a' * 64}", f"{'a' * 63}", f"1:2:{'a' * 64}"])
def test_invalid_anchor_text_is_not_parsed(text: str) -> None:
    assert parse_anchor(text) is None


# -- retention


def test_floor_rises_to_the_last_old_seal_that_is_not_the_newest() -> None:
    newest = msgspec.convert(sealed_log(10, 10, 10).seals[2], Seal)
    ends = [SealEnd(10, 1, 100), SealEnd(20, 2, 200), SealEnd(30, 3, 300)]
    assert next_floor(ends, newest, cutoff=99) is None
    assert next_floor(ends, newest, cutoff=100) == 10
    assert next_floor(ends, newest, cutoff=1_000) == 20
    assert next_floor(ends, newest, cutoff=1_000, lowest_needed=20) == 10
    assert next_floor(ends, newest, cutoff=1_000, lowest_needed=10) is None
    assert next_floor([], newest, cutoff=1_000) is None


def test_seal_is_never_older_than_the_previous_one_when_the_clock_steps_back() -> None:
    first = create_seal(SealInput(1, hash_events([event(1)]), 0), None, 5_000, SIGNER)
    assert create_seal(SealInput(2, hash_events([event(2)]), 0), first, 4_000, SIGNER).at == 5_000


def test_signing_message_of_a_seal_cannot_be_a_token(tmp_path: Path) -> None:
    # The signed text of a token consists of base64url characters and dots: it has no space.
    assert b" " in signing_message(msgspec.convert(sealed_log(1).seals[0], Seal))
