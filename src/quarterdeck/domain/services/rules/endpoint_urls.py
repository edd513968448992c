"""Which URLs may be registered, and which of them the server may be sent to.

The form is narrower than what URL libraries take. Whoever judges a URL and whoever connects to it must read the same
host in it, and the places where libraries differ (backslashes, a second @, spaces, tabs, letters of other scripts)
are the places that are left out here.
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
    """Why a URL is no endpoint, if it is none."""
    if len(url) > URL_MAX:
        return _invalid(f"It is longer than {URL_MAX} characters")
    if "#" in url:
        return _invalid("It has a fragment, which no server is ever sent")
    if _USERINFO.match(url):
        return _invalid("It holds a user or a password, which do not belong into a URL")
    match = _URL.fullmatch(url)
    if match is None:
        return _invalid("It is no absolute URL of plain characters; encode others by %")
    if match["scheme"].lower() not in ("http", "https"):
        return _invalid("It is neither http:// nor https://")
    if ssrf.blocked_host_reason(match["host"]) == ssrf.MALFORMED_HOST:
        return _invalid(f"Its host is {ssrf.MALFORMED_HOST}")
    if match["port"] is not None and not 1 <= int(match["port"]) <= 65_535:
        return _invalid("Its port is not one of 1 to 65535")
    return None


def push_problem(url: str, *, private_allowed: bool) -> Invalid | None:
    """Why the server does not let itself be sent to this endpoint, as far as its spelling tells."""
    match = _URL.fullmatch(url)
    reason = ssrf.blocked_host_reason(match["host"]) if match else ssrf.MALFORMED_HOST
    if reason is None or (private_allowed and reason != ssrf.MALFORMED_HOST):
        return None
    return _invalid(f"Invocations are pushed to public hosts only, and its host is {reason}")


def _invalid(reason: str) -> Invalid:
    return Invalid("invalid_endpoint_url", f"This cannot be an endpoint. {reason}.", field="endpoint_url")
