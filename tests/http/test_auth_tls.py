"""An issuer over TLS is trusted by its certificate only."""

from __future__ import annotations

from pathlib import Path

import pytest

from quarterdeck.core.errors import Unavailable
from quarterdeck.http.auth import Authenticator, AuthSettings
from tests.http.auth_support import FakeClock, TokenSigner, authorization_header, build_claims, run_issuer
from tests.support.certificates import create_certificate


@pytest.mark.parametrize(
    ("trusted", "address", "accepted"),
    [(True, "127.0.0.1", True), (False, "127.0.0.1", False), (True, "127.0.0.2", False)],
)
async def test_issuer_needs_a_trusted_certificate_for_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusted: bool, address: str, accepted: bool
) -> None:
    certificate_file, context = create_certificate(tmp_path, address)
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate_file))
    signer = TokenSigner("k1")
    async with run_issuer(context) as issuer:
        issuer.keys = [signer.jwk()]
        authenticator = Authenticator(AuthSettings(issuer_url=issuer.url), None, FakeClock())
        header = authorization_header(signer.sign(build_claims(issuer.url)))
        if accepted:
            assert (await authenticator.verify_token(header)).subject == "user-1"
        else:
            with pytest.raises(Unavailable):
                await authenticator.verify_token(header)
            assert issuer.requests == []
