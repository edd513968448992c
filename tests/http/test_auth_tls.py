"""An issuer over TLS: believed by its certificate, and only by that."""

from __future__ import annotations

from pathlib import Path

import pytest

from quarterdeck.core.errors import Unavailable
from quarterdeck.http.auth import Authenticator, AuthSettings
from tests.http.auth_support import FakeClock, TokenSigner, authorization_header, build_claims, run_issuer
from tests.support.certificates import create_certificate


@pytest.mark.parametrize(
    ("trusted", "address", "believed"),
    [(True, "127.0.0.1", True), (False, "127.0.0.1", False), (True, "127.0.0.2", False)],
)
async def test_an_issuer_is_believed_if_its_certificate_holds_for_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusted: bool, address: str, believed: bool
) -> None:
    public, context = create_certificate(tmp_path, address)
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(public))
    signer = TokenSigner("k1")
    async with run_issuer(context) as issuer:
        issuer.keys = [signer.jwk()]
        judge = Authenticator(AuthSettings(issuer_url=issuer.url), None, FakeClock())
        header = authorization_header(signer.sign(build_claims(issuer.url)))
        if believed:
            assert (await judge.verify_token(header)).subject == "user-1"
        else:
            with pytest.raises(Unavailable):
                await judge.verify_token(header)
            assert issuer.requests == []
