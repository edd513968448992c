"""Seals and proofs: whatever hands without the key do to a log, the proof finds it and names the first row."""

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

OWN, OTHER = (generate_private_key(SECP256R1()) for _ in range(2))
SIGNER = LocalIssuer(OWN, None)
STRANGER = LocalIssuer(OTHER, None)
TRUST: VerifySignature = TrustedKeys([OWN.public_key()]).verify


def event(pos: int, **values: object) -> Row:
    plain: dict[str, object] = {"id": f"e{pos}", "zone_id": "z", "type": "session.spawn", "subject": f"s{pos % 5}"}
    plain |= {"actor": "tester", "from_state": None, "to_state": "active", "data": '{"n":1}', "trace": None}
    return (pos, *(plain | {"at": 1_000 + pos} | values).values())


def sealed(*sizes: int, after: int = 0, floors: tuple[int, ...] = (), signer: LocalIssuer = SIGNER) -> LogRows:
    """A log with so many events under each seal, and `after` more that are not sealed yet."""
    seals: list[Seal] = []
    events: list[Row] = []
    for number, size in enumerate(sizes):
        fresh = [event(len(events) + 1 + n) for n in range(size)]
        floor = floors[number] if number < len(floors) else (seals[-1].floor if seals else 0)
        stretch = SealInput(len(events) + 1, hash_events(fresh), floor)
        seals.append(create_seal(stretch, seals[-1] if seals else None, 5_000 + number, signer))
        events += fresh
    events += [event(len(events) + 1 + n) for n in range(after)]
    floor = seals[-1].floor if seals else 0
    return LogRows(len(events), floor, tuple(msgspec.structs.astuple(one) for one in seals), tuple(events))


def kept(log: LogRows, above: int) -> LogRows:
    """What retention has left."""
    return log.with_events([row for row in log.events if int(str(row[0])) > above])


def anchor(log: LogRows) -> Anchor:
    found = parse_anchor(log.anchor)
    assert found
    return found


def proof_of(log: LogRows, *anchors: Anchor, trust: VerifySignature = TRUST) -> VerificationResult:
    return verify(log.verification_input(), trust, anchors)


def altered(log: LogRows, *anchors: Anchor, trust: VerifySignature = TRUST) -> VerificationError:
    with pytest.raises(VerificationError) as found:
        proof_of(log, *anchors, trust=trust)
    return found.value


# -- what is proved


def test_a_log_that_nobody_touched_is_proved_with_its_anchor() -> None:
    log = sealed(10, 1, 30, 0, after=4)
    proof = proof_of(log, anchor(log))
    assert (proof.seals, proof.events, proof.last_pos, proof.unproven, proof.unproven_since) == (4, 41, 41, 4, 1_042)
    assert (proof.newest, proof.kids, proof.removed) == (log.anchor, [SIGNER.kid], 0)


def test_an_empty_log_is_no_alteration_and_proves_nothing() -> None:
    assert proof_of(LogRows(0, 0, (), ())) == VerificationResult()
    assert proof_of(sealed(after=3)) == VerificationResult(unproven=3, unproven_since=1_001)


def test_events_at_or_below_the_attested_floor_may_be_gone_and_no_others() -> None:
    log = sealed(10, 10, 10, 0, floors=(0, 0, 0, 20))
    for lowest in range(21):
        proof = proof_of(kept(log, lowest), anchor(log))
        assert (proof.removed, proof.events, proof.floor) == (lowest, 30 - lowest, 20)
    assert altered(kept(log, 21)).pos == 21


def test_a_whole_log_may_be_gone_by_retention_if_a_seal_says_so() -> None:
    log = sealed(5, 5, 0, 0, floors=(0, 0, 5, 10))
    assert proof_of(kept(log, 10)).removed == 10


def test_what_is_left_below_the_floor_must_still_be_what_was_sealed() -> None:
    log = kept(sealed(10, 10, 10, 0, floors=(0, 0, 0, 20)), 5)
    hole = log.with_events([row for row in log.events if row[0] != 12])
    assert altered(hole).pos == 12
    assert altered(log.with_events([event(3), *log.events])).pos == 4, (
        "one that was gone is back, and its neighbour is not"
    )
    assert altered(log.with_events([event(5, actor="x"), *log.events])).pos == 5
    edited = [event(12, actor="x") if row[0] == 12 else row for row in log.events]
    assert altered(log.with_events(edited)).pos == 12


def test_a_floor_that_no_seal_attests_excuses_nothing() -> None:
    log = sealed(10, 10, 10)
    assert altered(replace(kept(log, 10), floor=10)).pos == 1


# -- a thousand hands


@pytest.mark.parametrize("way", TAMPERINGS)
@pytest.mark.parametrize(
    "log", [sealed(40, 1, 25, 60), kept(sealed(40, 1, 25, 60, 0, floors=(0, 0, 0, 0, 41)), 17)], ids=["whole", "kept"]
)
def test_every_edit_deletion_insertion_reordering_and_truncation_is_found_and_its_first_row_named(
    log: LogRows, way: str
) -> None:
    found = 0
    for number in range(400):
        wrong = TAMPERINGS[way](log, Random(f"{way} {number}"))
        named = first_difference(log, wrong)
        if not named:
            assert proof_of(wrong, anchor(log))
            continue
        found += 1
        verdict = altered(wrong, anchor(log))
        assert verdict.pos in named, f"{way} {number}: {verdict.message}"
    assert found > 300


def test_of_several_changes_the_first_is_named() -> None:
    log = sealed(40, 1, 25, 60)
    for number in range(400):
        chance = Random(number)
        wrong = log
        for way in chance.sample(["edit", "delete", "insert", "reorder"], 3):
            wrong = TAMPERINGS[way](wrong, chance)
        named = first_difference(log, wrong)
        if named:
            assert altered(wrong, anchor(log)).pos in named


# -- values that look the same and are not


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
def test_a_value_of_another_type_or_spelling_is_another_value(values: dict[str, object]) -> None:
    log = sealed(10, 10)
    original = event(12, actor="abcd")
    rows = [original if row[0] == 12 else row for row in log.events]
    first = create_seal(SealInput(1, hash_events(rows[:10]), 0), None, 1, SIGNER)
    second = create_seal(SealInput(11, hash_events(rows[10:]), 0), first, 2, SIGNER)
    honest = replace(log, seals=(msgspec.structs.astuple(first), msgspec.structs.astuple(second))).with_events(rows)
    assert proof_of(honest).events == 20
    wrong = honest.with_events([event(12, **{"actor": "abcd"} | values) if row[0] == 12 else row for row in rows])
    assert altered(wrong).pos == 12


def test_a_row_that_is_no_event_is_not_sealed_and_not_proved() -> None:
    with pytest.raises(InvalidEventRow) as found:
        hash_events([event(1), event(2, data=b"{}")])
    assert found.value.pos == 2
    assert altered(sealed(3).with_events([*sealed(3).events, event(4, at=None)])).pos == 4
    assert altered(replace(sealed(3, after=1), events=(*sealed(3).events, event(4, at=None)))).pos == 4


def test_two_rows_at_one_position_are_one_too_many() -> None:
    log = sealed(5, 5, after=3)
    for pos in (4, 12):
        twice = log.with_events([*log.events, event(pos)])
        assert (altered(twice).pos, altered(twice).message) == (pos, f"There is a second row at position {pos}.")


# -- the seals themselves


def with_seal(log: LogRows, number: int, change: Callable[[Seal], Seal]) -> LogRows:
    seals = [msgspec.convert(row, Seal) for row in log.seals]
    seals[number - 1] = change(seals[number - 1])
    return replace(log, seals=tuple(msgspec.structs.astuple(one) for one in seals))


CHANGES: dict[str, object] = {
    "first_pos": 12,
    "last_pos": 21,
    "floor": 10,
    "digest": "0" * 64,
    "leaves": "AAAAAAAAAAA=",
    "previous": "0" * 64,
    "hash": "0" * 64,
    "kid": STRANGER.kid,
    "signature": base64.b64encode(bytes(64)).decode(),
    "at": 1,
}


@pytest.mark.parametrize("column", CHANGES)
def test_a_seal_that_was_altered_is_named_and_so_is_one_made_fit_without_the_key(column: str) -> None:
    log = sealed(10, 10, 10)

    def change(one: Seal) -> Seal:
        return msgspec.structs.replace(one, **{column: CHANGES[column]})

    def refit(one: Seal) -> Seal:
        return msgspec.structs.replace(change(one), hash=hash_seal(change(one)))

    for wrong in (with_seal(log, 2, change), with_seal(log, 2, refit)):
        if wrong != log:
            assert (altered(wrong).seal, altered(wrong).pos) == (2, 11)


@pytest.mark.parametrize("value", ["", "!", "AAAA", "é"])
@pytest.mark.parametrize("column", ["leaves", "signature"])
def test_what_cannot_even_be_decoded_is_a_verdict_and_no_crash(column: str, value: str) -> None:
    def change(one: Seal) -> Seal:
        changed = msgspec.structs.replace(one, **{column: value})
        return msgspec.structs.replace(changed, hash=hash_seal(changed))

    assert altered(with_seal(sealed(10, 10, 10), 2, change)).seal == 2


def test_a_value_of_a_type_that_no_seal_has_is_a_verdict_and_no_crash() -> None:
    log = sealed(10, 10)
    for place in range(1, 11):
        row = log.seals[0]
        wrong = replace(log, seals=((*row[:place], b"x", *row[place + 1 :]), log.seals[1]))
        assert altered(wrong).seal == 1
    assert altered(replace(log, seals=(log.seals[0], (2, None, *log.seals[1][2:])))).seal == 2


def test_a_seal_that_is_gone_doubled_or_moved_is_named() -> None:
    log = sealed(10, 10, 10)
    first, second, third = log.seals
    assert (altered(replace(log, seals=(first, third))).seal, altered(replace(log, seals=(first, third))).pos) == (
        2,
        11,
    )
    assert altered(replace(log, seals=(second, third))).pos == 1
    assert altered(replace(log, seals=(first, first, second, third))).seal == 1
    swapped = ((1, *second[1:]), (2, *first[1:]), third)
    assert altered(replace(log, seals=swapped)).pos == 1


def test_what_the_head_says_must_agree_with_rows_and_seals() -> None:
    log = sealed(10, 10)
    assert "log_head" in altered(replace(log, head=19)).message
    assert altered(replace(log, head=21)).pos == 21
    assert "floor" in altered(replace(log, floor=30)).message
    assert "floor" in altered(replace(sealed(10, 10, 0, floors=(0, 0, 10)), floor=0)).message
    for head in (None, ("x", 0), (1, None)):
        with pytest.raises(VerificationError, match="log_head"):
            verify(replace(log.verification_input(), head=head), TRUST)


# -- keys and anchors


def test_a_chain_signed_by_another_key_is_refused_and_the_key_named() -> None:
    forged = sealed(10, 10, signer=STRANGER)
    verdict = altered(forged)
    assert verdict.seal == 1
    assert STRANGER.kid in verdict.message
    both: VerifySignature = TrustedKeys([OWN.public_key(), OTHER.public_key()]).verify
    assert proof_of(forged, trust=both).kids == [STRANGER.kid]


def test_a_key_that_claims_the_name_of_another_proves_nothing() -> None:
    forged = with_seal(sealed(10, signer=STRANGER), 1, lambda one: msgspec.structs.replace(one, kid=SIGNER.kid))
    assert altered(forged).seal == 1

    def refit(one: Seal) -> Seal:
        changed = msgspec.structs.replace(one, kid=SIGNER.kid)
        changed = msgspec.structs.replace(changed, hash=hash_seal(changed))
        signature = base64.b64encode(STRANGER.sign(signing_message(changed))).decode()
        return msgspec.structs.replace(changed, signature=signature)

    assert "did not make" in altered(with_seal(sealed(10), 1, refit)).message


def test_only_an_anchor_shows_that_the_end_was_cut_off_with_its_seals() -> None:
    log = sealed(10, 10, 10)
    short = replace(log, seals=log.seals[:2], head=20).with_events(log.events[:20])
    assert proof_of(short).events == 20
    verdict = altered(short, anchor(log))
    assert (verdict.pos, verdict.seal) == (21, 3)
    emptied = LogRows(0, 0, (), ())
    assert proof_of(emptied) == VerificationResult()
    assert altered(emptied, anchor(log)).pos == 1


def test_an_anchor_shows_that_a_chain_was_made_again_even_with_the_key() -> None:
    log = sealed(10, 10, 10)
    rows = [event(n, actor="x") if n == 15 else event(n) for n in range(1, 31)]
    again: list[Seal] = []
    for number in range(3):
        stretch = SealInput(number * 10 + 1, hash_events(rows[number * 10 : number * 10 + 10]), 0)
        again.append(create_seal(stretch, again[-1] if again else None, 5_000 + number, SIGNER))
    remade = replace(log, seals=tuple(msgspec.structs.astuple(one) for one in again)).with_events(rows)
    assert proof_of(remade).events == 30
    noted = Anchor(str(log.seals[1][7]), 2)
    assert (altered(remade, noted).pos, altered(remade, noted).seal) == (11, 2)
    assert altered(remade, Anchor(noted.hash)).pos == 31, "without a number all that is known is that it is not there"


def test_every_anchor_must_be_met() -> None:
    log = sealed(10, 10, 10)
    noted = [Anchor(str(row[7]), int(str(row[0]))) for row in log.seals]
    assert proof_of(log, *noted, Anchor(noted[1].hash)).events == 30
    assert altered(log, *noted, Anchor("0" * 64)).pos == 31
    assert altered(log, Anchor(noted[0].hash, 2)).seal == 2


@pytest.mark.parametrize("text", ["", "x", "1:", f"1:{'A' * 64}", f"-1:{'a' * 64}", f"{'a' * 63}", f"1:2:{'a' * 64}"])
def test_what_is_no_anchor_is_not_taken_for_one(text: str) -> None:
    assert parse_anchor(text) is None


# -- retention


def test_the_floor_rises_to_the_end_of_the_last_whole_seal_that_is_old_and_not_the_newest() -> None:
    newest = msgspec.convert(sealed(10, 10, 10).seals[2], Seal)
    ends = [SealEnd(10, 1, 100), SealEnd(20, 2, 200), SealEnd(30, 3, 300)]
    assert next_floor(ends, newest, cutoff=99) is None
    assert next_floor(ends, newest, cutoff=100) == 10
    assert next_floor(ends, newest, cutoff=1_000) == 20
    assert next_floor(ends, newest, cutoff=1_000, lowest_needed=20) == 10
    assert next_floor(ends, newest, cutoff=1_000, lowest_needed=10) is None
    assert next_floor([], newest, cutoff=1_000) is None


def test_a_clock_that_was_set_back_makes_no_seal_older_than_the_one_before() -> None:
    first = create_seal(SealInput(1, hash_events([event(1)]), 0), None, 5_000, SIGNER)
    assert create_seal(SealInput(2, hash_events([event(2)]), 0), first, 4_000, SIGNER).at == 5_000


def test_what_a_seal_signs_can_be_no_token(tmp_path: Path) -> None:
    # A token's signed text is base64url and dots.
    assert b" " in signing_message(msgspec.convert(sealed(1).seals[0], Seal))
