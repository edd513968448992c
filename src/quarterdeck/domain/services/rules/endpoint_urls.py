"""Which URLs may be registered, and which of them the server may push to.

The accepted syntax is narrower than that of URL libraries. This check and the HTTP client must find the same host in a
URL. Libraries differ on backslashes, a second @, spaces, tabs and non-ASCII letters, so none of these is accepted.
"""

from __future__ import annotations

import re

from quarterdeck.core import ssrf
from quarterdeck.core.errors import Invalid
from quarterdeck.domain.services.model import URL_MAX

_CHARACTER = r"[A-Za-z0-9\-._~!$&'()*+,;=:@]|%[0-9A-Fa-f]{2}"
_URL = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]*)://"
    r"(?P<host>[A-Za-z0-9._\-]+|\[[0-9A-Fa-f:.]+\])"
    r"(?::(?P<port>[0-9]{1,5}))?"
    rf"(?:/(?:{_CHARACTER}|/)*)?"
    rf"(?:\?(?:{_CHARACTER}|[/?])*)?"
)
_USERINFO = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://[^/?#]*@")


def endpoint_problem(url: str) -> Invalid | None:
    """Return an error if the URL cannot be registered."""
    if len(url) > URL_MAX:
        return _invalid(f"The URL is longer than {URL_MAX} characters")
    if "#" in url:
        return _invalid("Remove the fragment (#…): clients do not send it to a server")
    if _USERINFO.match(url):
        return _invalid("Remove the user name and password from the URL")
    match = _URL.fullmatch(url)
    if match is None:
        return _invalid("Give an absolute URL, and percent-encode special characters")
    if match["scheme"].lower() not in ("http", "https"):
        return _invalid("The URL must start with http:// or https://")
    if ssrf.blocked_host_reason(match["host"]) == ssrf.MALFORMED_HOST:
        return _invalid(f"The host is {ssrf.MALFORMED_HOST}")
    if match["port"] is not None and not 1 <= int(match["port"]) <= 65_535:
        return _invalid("The port must be from 1 to 65535")
    return None


def push_problem(url: str, *, private_allowed: bool) -> Invalid | None:
    """Return an error if the server may not push to this URL. Checks only the URL itself and resolves no host name."""
    match = _URL.fullmatch(url)
    reason = ssrf.blocked_host_reason(match["host"]) if match else ssrf.MALFORMED_HOST
    if reason is None or (private_allowed and reason != ssrf.MALFORMED_HOST):
        return None
    return _invalid(f"Push needs a public host, and this host is {reason}")


def _invalid(reason: str) -> Invalid:
    return Invalid("invalid_endpoint_url", f"Invalid endpoint_url. {reason}.", field="endpoint_url")
