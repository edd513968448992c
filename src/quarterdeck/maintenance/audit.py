"""`qd audit verify` and `qd audit anchor`: the log, read from the database itself and held against its seals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from quarterdeck.core.audit_seal import Seal
from quarterdeck.core.audit_verify import Altered, Anchor, Evidence, Proof, anchor_of, verify
from quarterdeck.core.clock import iso
from quarterdeck.core.errors import Invalid, NotFound
from quarterdeck.http.auth.secret_files import KeyFileError
from quarterdeck.maintenance.audit_keys import TrustedKeys, trusted_keys
from quarterdeck.maintenance.queries import Q
from quarterdeck.maintenance.snapshot import Snapshot, first, rows, snapshot_of

NO_ANCHOR = (
    "No anchor was given: that the newest seals were not cut off together with their events is not proved. Note "
    "`qd audit anchor` outside this machine now and then, and give it with --anchor."
)


class Verdict(msgspec.Struct, frozen=True):
    """What `qd audit verify` has to say."""

    proven: bool
    proof: Proof | None = None
    what: str | None = None
    """What is altered, in a sentence."""
    pos: int | None = None
    """The first row of the log that is not what it was."""
    seal: int | None = None
    anchors: list[str] = []

    def document(self) -> dict[str, object]:
        told: dict[str, object] = {"proven": self.proven, "anchors": self.anchors}
        if self.proof is None:
            return {**told, "altered": {"what": self.what, "pos": self.pos, "seal": self.seal}}
        proof = msgspec.to_builtins(self.proof)
        since = self.proof.unproven_since
        return {**told, **proof, "unproven_since": None if since is None else iso(since), "limits": self.limits()}

    def limits(self) -> list[str]:
        """What is not proved, in words."""
        proof, told = self.proof, []
        if proof and proof.unproven and proof.unproven_since is not None:
            told.append(
                f"{_many(proof.unproven, 'event')} after position {proof.last_pos} {_are(proof.unproven)} not sealed "
                f"yet (the oldest is of {iso(proof.unproven_since)}), and so not proved."
            )
        if proof and proof.seals == 0:
            told.append("There is no seal: nothing is proved.")
        return told if self.anchors else [*told, NO_ANCHOR]

    def text(self) -> str:
        if self.proof is None:
            return f"altered: {self.what}"
        return "\n".join([f"proven: {_proved(self.proof, self.anchors)}", *(f"  {line}" for line in self.limits())])


def judge(url: str, trusted: TrustedKeys, anchors: Sequence[Anchor] = ()) -> Verdict:
    """Reads everything there is, as of one moment."""
    named = [str(anchor) for anchor in anchors]
    with snapshot_of(url) as snapshot:
        try:
            return Verdict(True, verify(evidence_of(snapshot), trusted.verifies, anchors), anchors=named)
        except Altered as found:
            return Verdict(False, None, found.what, found.pos, found.seal, named)


def evidence_of(snapshot: Snapshot) -> Evidence:
    return Evidence(
        head=first(snapshot, Q.log_head_row()),
        newest=first(snapshot, Q.seal_last()),
        seals=rows(snapshot, Q.seals_all()),
        events=snapshot.pages(Q.events_all()),
    )


def newest_anchor(url: str) -> str:
    """The newest seal, to be noted elsewhere."""
    with snapshot_of(url) as snapshot:
        found = first(snapshot, Q.seal_last())
    if found is None:
        raise NotFound("not_sealed", "Nothing is sealed yet. A server seals what is new every few seconds.")
    return msgspec.convert(found, Seal).name


# -- what is given on the command line -----------------------------------------------------------------------------


def keys_to_trust(named: Sequence[str], own: Path) -> TrustedKeys:
    """The keys that were named; if none was, the one in the data directory."""
    if named:
        return trusted_keys(Path(name) for name in named)
    if not own.exists():
        raise KeyFileError(
            f"There is no signing key at {own}. Name the key that signed with --key: a PEM file, or the "
            "/.well-known/jwks.json of the server, saved at the time."
        )
    return trusted_keys([own])


def anchors_of(given: Iterable[str]) -> list[Anchor]:
    """Each is an anchor itself, or a file with one in each line."""
    return [anchor for one in given for anchor in _anchors(one)]


def _anchors(text: str) -> list[Anchor]:
    if (anchor := anchor_of(text.strip())) is not None:
        return [anchor]
    try:
        lines = [line.strip() for line in Path(text).read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError):
        raise _no_anchor(text) from None
    found = [anchor_of(line) for line in lines if line and not line.startswith("#")]
    if not found or None in found:
        raise _no_anchor(text)
    return [anchor for anchor in found if anchor]


def _no_anchor(text: str) -> Invalid:
    return Invalid(
        "invalid_anchor",
        f"{text} is neither an anchor, as `qd audit anchor` prints it, nor a file with nothing but anchors in it.",
    )


# -- words ----------------------------------------------------------------------------------------------------------


def _proved(proof: Proof, anchors: Sequence[str]) -> str:
    by = f", signed by {' and '.join(proof.kids)}" if proof.kids else ""
    told = f"{_many(proof.events, 'event')} under {_many(proof.seals, 'seal')}{by}."
    if proof.removed:
        told += f" {_many(proof.removed, 'event')} up to position {proof.floor} were removed by retention."
    if anchors:
        told += f" The chain runs through {_many(len(anchors), 'anchor')}."
    return told


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
