"""`qd audit verify` and `qd audit anchor`: verify the event log in the database against its seals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from quarterdeck.core.audit_seal import Seal
from quarterdeck.core.audit_verify import (
    Anchor,
    VerificationError,
    VerificationInput,
    VerificationResult,
    parse_anchor,
    verify,
)
from quarterdeck.core.clock import iso
from quarterdeck.core.errors import Invalid, NotFound
from quarterdeck.http.auth.secret_files import KeyFileError
from quarterdeck.maintenance.audit_keys import TrustedKeys, load_trusted_keys
from quarterdeck.maintenance.queries import Q
from quarterdeck.maintenance.snapshot import Snapshot, first_row, iter_rows, open_snapshot

NO_ANCHOR = (
    "No anchor was given, so the newest seals may have been deleted together with their events. "
    "Store the output of `qd audit anchor` on another machine regularly, and pass it with --anchor."
)


class AuditReport(msgspec.Struct, frozen=True):
    """The result of `qd audit verify`."""

    is_proven: bool
    proof: VerificationResult | None = None
    alteration: str | None = None
    """What was altered, as a sentence."""
    pos: int | None = None
    """The position of the first altered event."""
    seal: int | None = None
    anchors: list[str] = []

    def to_dict(self) -> dict[str, object]:
        result: dict[str, object] = {"proven": self.is_proven, "anchors": self.anchors}
        if self.proof is None:
            return {**result, "altered": {"what": self.alteration, "pos": self.pos, "seal": self.seal}}
        proof = msgspec.to_builtins(self.proof)
        since = self.proof.unproven_since
        return {
            **result,
            **proof,
            "unproven_since": None if since is None else iso(since),
            "limits": self.unproven_notes(),
        }

    def unproven_notes(self) -> list[str]:
        """What the result does not prove, as sentences."""
        proof, notes = self.proof, []
        if proof and proof.unproven and proof.unproven_since is not None:
            notes.append(
                f"{_pluralize(proof.unproven, 'event')} after position {proof.last_pos} {_is_or_are(proof.unproven)} "
                f"not sealed yet (the oldest is from {iso(proof.unproven_since)}), and therefore not proven."
            )
        if proof and proof.seals == 0:
            notes.append("There are no seals: nothing is proven.")
        return notes if self.anchors else [*notes, NO_ANCHOR]

    def text(self) -> str:
        if self.proof is None:
            return f"altered: {self.alteration}"
        return "\n".join(
            [f"proven: {_proof_text(self.proof, self.anchors)}", *(f"  {line}" for line in self.unproven_notes())]
        )


def verify_log(url: str, trusted_keys: TrustedKeys, anchors: Sequence[Anchor] = ()) -> AuditReport:
    """Verify all seals and events in one snapshot."""
    anchor_texts = [str(anchor) for anchor in anchors]
    with open_snapshot(url) as snapshot:
        try:
            return AuditReport(
                True, verify(load_evidence(snapshot), trusted_keys.verify, anchors), anchors=anchor_texts
            )
        except VerificationError as error:
            return AuditReport(False, None, error.message, error.pos, error.seal, anchor_texts)


def load_evidence(snapshot: Snapshot) -> VerificationInput:
    return VerificationInput(
        head=first_row(snapshot, Q.log_head_row()),
        newest_seal=first_row(snapshot, Q.seal_last()),
        seals=iter_rows(snapshot, Q.seals_all()),
        events=snapshot.pages(Q.events_all()),
    )


def newest_anchor(url: str) -> str:
    """The newest seal as an anchor, to be stored on another machine."""
    with open_snapshot(url) as snapshot:
        seal_row = first_row(snapshot, Q.seal_last())
    if seal_row is None:
        raise NotFound("not_sealed", "There are no seals yet. A running server seals new events every few seconds.")
    return msgspec.convert(seal_row, Seal).anchor


# -- command-line arguments ----------------------------------------------------------------------------------------


def select_trusted_keys(key_files: Sequence[str], default_key_file: Path) -> TrustedKeys:
    """The keys in `key_files`, or the key in `default_key_file` if there are none."""
    if key_files:
        return load_trusted_keys(Path(name) for name in key_files)
    if not default_key_file.exists():
        raise KeyFileError(
            f"There is no signing key at {default_key_file}. Use --key to pass the key that signed the seals: a PEM "
            "file, or a saved copy of the server's /.well-known/jwks.json."
        )
    return load_trusted_keys([default_key_file])


def parse_anchors(arguments: Iterable[str]) -> list[Anchor]:
    """Each argument is an anchor, or the name of a file with one anchor per line."""
    return [anchor for argument in arguments for anchor in _parse_anchor_argument(argument)]


def _parse_anchor_argument(text: str) -> list[Anchor]:
    if (anchor := parse_anchor(text.strip())) is not None:
        return [anchor]
    try:
        lines = [line.strip() for line in Path(text).read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError):
        raise _invalid_anchor(text) from None
    parsed_anchors = [parse_anchor(line) for line in lines if line and not line.startswith("#")]
    if not parsed_anchors or None in parsed_anchors:
        raise _invalid_anchor(text)
    return [anchor for anchor in parsed_anchors if anchor]


def _invalid_anchor(text: str) -> Invalid:
    return Invalid(
        "invalid_anchor", f"{text} is neither an anchor nor a file of anchors. `qd audit anchor` prints an anchor."
    )


# -- report text ----------------------------------------------------------------------------------------------------


def _proof_text(proof: VerificationResult, anchors: Sequence[str]) -> str:
    signers = f", signed by {' and '.join(proof.kids)}" if proof.kids else ""
    text = f"{_pluralize(proof.events, 'event')} under {_pluralize(proof.seals, 'seal')}{signers}."
    if proof.removed:
        verb = "was" if proof.removed == 1 else "were"
        text += f" {_pluralize(proof.removed, 'event')} up to position {proof.floor} {verb} removed by retention."
    if anchors:
        text += f" The chain contains {_pluralize(len(anchors), 'anchor')}."
    return text


def _pluralize(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _is_or_are(count: int) -> str:
    return "is" if count == 1 else "are"
