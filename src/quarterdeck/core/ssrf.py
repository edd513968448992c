"""Which hosts this server may be sent to by somebody else's word.

Whoever registers an endpoint makes the server call it. The server stands inside a network that its callers may not
reach: its own loopback, its neighbours, the metadata service of its cloud. So a host is judged twice: as it is spelt,
when it is registered (`refused`), and by every address that its name gives, each time it is called (`address_refused`).

A spelling is refused for more than the address it stands for. `2130706433`, `0x7f.1` and `0177.0.0.1` are all 127.0.0.1
to some resolver and names to others; an IPv4 address inside an IPv6 one says the same thing twice. Nobody who means a
public host writes such, so none is worth the risk of reading it otherwise than the library that will connect.

What a resolver gives is another matter: in a network that has IPv6 only, every public IPv4 host is given as
`64:ff9b::…`, and that is judged by the IPv4 address in it. A network may use another prefix for this, which cannot be
known from here; whoever runs such a network must keep that prefix from reaching private addresses.

Of IPv6 only what is given out as global unicast is let through, and of that not what is special; of IPv4 everything is
but what is special, by the registries of IANA (RFC 6890 and its successors), and by what clouds use for their metadata.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Address = IPv4Address | IPv6Address
MALFORMED_HOST = "neither a plain name nor an address"

_BLOCKED_IPV4: tuple[tuple[IPv4Network, str], ...] = tuple(
    (IPv4Network(block), reason)
    for block, reason in (
        ("0.0.0.0/8", "unspecified"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "shared by the customers of a carrier"),
        ("127.0.0.0/8", "loopback"),
        ("168.63.129.16/32", "a metadata address"),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved for protocols"),
        ("192.0.2.0/24", "for documentation"),
        ("192.31.196.0/24", "reserved for protocols"),
        ("192.52.193.0/24", "reserved for protocols"),
        ("192.88.99.0/24", "a relay to IPv6"),
        ("192.168.0.0/16", "private"),
        ("192.175.48.0/24", "reserved for protocols"),
        ("198.18.0.0/15", "for benchmarks"),
        ("198.51.100.0/24", "for documentation"),
        ("203.0.113.0/24", "for documentation"),
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
        ("64:ff9b:1::/48", "a translation to IPv4 for local use"),
        ("2001::/23", "reserved for protocols"),
        ("2001:db8::/32", "for documentation"),
        ("2002::/16", "a tunnel to IPv4"),
        ("2620:4f:8000::/48", "reserved for protocols"),
        ("3fff::/20", "for documentation"),
    )
)
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")
_MAPPED = IPv6Network("::ffff:0:0/96")
_TRANSLATED = IPv6Network("::ffff:0:0:0/96")
_COMPATIBLE = IPv6Network("::/96")
_ISATAP_PREFIXES = (0x0000_5EFE, 0x0200_5EFE)
"""How an interface id begins whose last four bytes are an IPv4 address."""

_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST_NAME = re.compile(rf"(?=.{{1,253}}$)(?:{_LABEL}\.)*{_LABEL}")
_NUMERIC_LAST_LABEL = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")
_LOCAL_NAMES = frozenset({"localhost", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback", "broadcasthost"})
_LOCAL_SUFFIXES = (".localhost", ".localdomain", ".local", ".internal", ".home.arpa")


def blocked_host_reason(host: str) -> str | None:
    """Why a host, as it is spelt in a URL, is refused; None for a public address, and for a name that only its
    addresses can tell about."""
    if not host.isascii():
        # Judged before it is lowered: some letters of other scripts are plain ones in small.
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
        return "a name of a private network"
    return None


def blocked_address_reason(address: Address | str) -> str | None:
    """Why an address that a name was resolved to is refused, if it is."""
    if isinstance(address, str):
        try:
            address = ip_address(address)
        except ValueError:
            return "no address"
    return _blocked_ipv4_reason(address) if isinstance(address, IPv4Address) else _blocked_ipv6_reason(address)


def _blocked_ipv4_host_reason(host: str) -> str | None:
    try:
        return _blocked_ipv4_reason(IPv4Address(host))
    except ValueError:
        return "an address spelt otherwise than as four plain decimal numbers"


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
    if reason := next((why for block, why in _BLOCKED_IPV6 if address in block), None):
        return reason
    if embedded := _embedded_ipv4(address):
        return f"an IPv4 address inside an IPv6 address: {embedded}"
    return None if address in _GLOBAL_UNICAST else "not given out as a public address"


def _embedded_ipv4(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 address is, or is sent to, in one of the ways there are."""
    number = int(address)
    if address in _MAPPED or address in _TRANSLATED or address in _NAT64:
        return _low_ipv4(address)
    if address in _COMPATIBLE and number > 1:
        return _low_ipv4(address)
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if number >> 32 & 0xFFFF_FFFF in _ISATAP_PREFIXES:
        return _low_ipv4(address)
    return None


def _low_ipv4(address: IPv6Address) -> IPv4Address:
    return IPv4Address(int(address) & 0xFFFF_FFFF)
