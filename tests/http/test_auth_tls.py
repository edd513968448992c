"""An issuer over TLS: believed by its certificate, and only by that."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from quarterdeck.core.errors import Unavailable
from quarterdeck.http.auth import Authenticator, AuthSettings
from tests.http.auth_support import Clock, Signer, bearer, claims_of, issuer_server


def certificate(directory: Path, address: str) -> tuple[Path, ssl.SSLContext]:
    """A self-signed certificate for one address, and a server's context with it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "issuer")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    public, both = directory / "cert.pem", directory / "both.pem"
    public.write_bytes(made.public_bytes(Encoding.PEM))
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    both.write_bytes(private + public.read_bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(both)
    return public, context


@pytest.mark.parametrize(
    ("trusted", "address", "believed"),
    [(True, "127.0.0.1", True), (False, "127.0.0.1", False), (True, "127.0.0.2", False)],
)
async def test_an_issuer_is_believed_if_its_certificate_holds_for_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusted: bool, address: str, believed: bool
) -> None:
    public, context = certificate(tmp_path, address)
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(public))
    signer = Signer("k1")
    async with issuer_server(context) as issuer:
        issuer.keys = [signer.jwk()]
        judge = Authenticator(AuthSettings(issuer_url=issuer.url), None, Clock())
        header = bearer(signer.sign(claims_of(issuer.url)))
        if believed:
            assert (await judge.verify(header)).subject == "user-1"
        else:
            with pytest.raises(Unavailable):
                await judge.verify(header)
            assert issuer.requests == []
