"""Which hosts and addresses the server may call for a client (protection against server-side request forgery).

A client that registers an endpoint makes the server call it. The server may reach addresses that its clients cannot
reach: its loopback, its neighbors, the metadata service of its cloud. So a host is checked twice: its spelling when it
is registered (`blocked_host_reason`), and each address it resolves to every time it is called
(`blocked_address_reason`).

Some spellings are refused whatever address they mean. `2130706433`, `0x7f.1` and `0177.0.0.1` are 127.0.0.1 to some
resolvers and names to others; an IPv4 address inside an IPv6 address is as ambiguous. Legitimate public hosts are not
written like this, and the library that connects might interpret them differently.

Resolved addresses are different: in an IPv6-only network every public IPv4 host resolves to `64:ff9b::…` (NAT64). For
such an address, the embedded IPv4 address is checked. A network may use another NAT64 prefix, which the server cannot
know; its operator must keep that prefix from reaching private addresses.

IPv4 addresses are allowed except for the special blocks. IPv6 addresses are allowed only if they are global unicast
and not in a special block. The blocks come from the IANA registries (RFC 6890 and its successors) and from the metadata
addresses of clouds.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Address = IPv4Address | IPv6Address
MALFORMED_HOST = "neither a valid host name nor an IP address"

_BLOCKED_IPV4: tuple[tuple[IPv4Network, str], ...] = tuple(
    (IPv4Network(block), reason)
    for block, reason in (
        ("0.0.0.0/8", "unspecified"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "shared address space of a carrier"),
        ("127.0.0.0/8", "loopback"),
        ("168.63.129.16/32", "a metadata address"),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved for protocols"),
        ("192.0.2.0/24", "reserved for documentation"),
        ("192.31.196.0/24", "reserved for protocols"),
        ("192.52.193.0/24", "reserved for protocols"),
        ("192.88.99.0/24", "a 6to4 relay"),
        ("192.168.0.0/16", "private"),
        ("192.175.48.0/24", "reserved for protocols"),
        ("198.18.0.0/15", "reserved for benchmarks"),
        ("198.51.100.0/24", "reserved for documentation"),
        ("203.0.113.0/24", "reserved for documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
    )
)
_BLOCKED_IPV6: tuple[tuple[IPv6Network, str], ...] = tuple(
    (IPv6Network(block), reason)
    for block, reason in (
        ("::/128", "unspecified"),
        ("::1/128", "loopback"),
        ("fc00::/7", "private"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "private"),
        ("ff00::/8", "multicast"),
        ("64:ff9b:1::/48", "a local-use NAT64 address"),
        ("2001::/23", "reserved for protocols"),
        ("2001:db8::/32", "reserved for documentation"),
        ("2002::/16", "a 6to4 address"),
        ("2620:4f:8000::/48", "reserved for protocols"),
        ("3fff::/20", "reserved for documentation"),
    )
)
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")
_MAPPED = IPv6Network("::ffff:0:0/96")
_TRANSLATED = IPv6Network("::ffff:0:0:0/96")
_COMPATIBLE = IPv6Network("::/96")
_ISATAP_PREFIXES = (0x0000_5EFE, 0x0200_5EFE)
"""The start of an ISATAP interface id, whose last four bytes are an IPv4 address."""

_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST_NAME = re.compile(rf"(?=.{{1,253}}$)(?:{_LABEL}\.)*{_LABEL}")
_NUMERIC_LAST_LABEL = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")
_LOCAL_NAMES = frozenset({"localhost", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback", "broadcasthost"})
_LOCAL_SUFFIXES = (".localhost", ".localdomain", ".local", ".internal", ".home.arpa")


def blocked_host_reason(host: str) -> str | None:
    """Why a host, as written in a URL, is refused. None for a public address and for a name that is not local; the
    addresses of a name are checked when it is called."""
    if not host.isascii():
        # Checked before lower-casing, which turns some non-ASCII letters into ASCII ones.
        return MALFORMED_HOST
    host_lower = host.lower()
    if host_lower.startswith("[") or ":" in host_lower:
        return _blocked_ipv6_host_reason(host_lower)
    name = host_lower.removesuffix(".")
    if not _HOST_NAME.fullmatch(name):
        return MALFORMED_HOST
    if _NUMERIC_LAST_LABEL.fullmatch(name):
        return _blocked_ipv4_host_reason(host_lower)
    if name in _LOCAL_NAMES or name.endswith(_LOCAL_SUFFIXES):
        return "a private network name"
    return None


def blocked_address_reason(address: Address | str) -> str | None:
    """Why an address that a name resolved to is refused, or None if it is allowed."""
    if isinstance(address, str):
        try:
            address = ip_address(address)
        except ValueError:
            return "not an IP address"
    return _blocked_ipv4_reason(address) if isinstance(address, IPv4Address) else _blocked_ipv6_reason(address)


def _blocked_ipv4_host_reason(host: str) -> str | None:
    try:
        return _blocked_ipv4_reason(IPv4Address(host))
    except ValueError:
        return "an IP address that is not written as four decimal numbers"


def _blocked_ipv6_host_reason(host: str) -> str | None:
    address_text = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        address = IPv6Address(address_text)
    except ValueError:
        return MALFORMED_HOST
    if embedded := _embedded_ipv4(address):
        return f"an IPv4 address inside an IPv6 address: {embedded}"
    return _blocked_ipv6_reason(address)


def _blocked_ipv4_reason(address: IPv4Address) -> str | None:
    return next((reason for block, reason in _BLOCKED_IPV4 if address in block), None)


def _blocked_ipv6_reason(address: IPv6Address) -> str | None:
    if address.scope_id is not None:
        return "link-local"
    if address in _NAT64:
        return _blocked_ipv4_reason(_low_ipv4(address))
    if reason := next((reason for block, reason in _BLOCKED_IPV6 if address in block), None):
        return reason
    if embedded := _embedded_ipv4(address):
        return f"an IPv4 address inside an IPv6 address: {embedded}"
    return None if address in _GLOBAL_UNICAST else "not a public address"


def _embedded_ipv4(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 address contains or is routed to, in any of the known forms."""
    address_bits = int(address)
    if address in _MAPPED or address in _TRANSLATED or address in _NAT64:
        return _low_ipv4(address)
    if address in _COMPATIBLE and address_bits > 1:
        return _low_ipv4(address)
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if address_bits >> 32 & 0xFFFF_FFFF in _ISATAP_PREFIXES:
        return _low_ipv4(address)
    return None


def _low_ipv4(address: IPv6Address) -> IPv4Address:
    return IPv4Address(int(address) & 0xFFFF_FFFF)
