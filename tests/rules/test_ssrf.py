"""Which hosts the server may call: every special-purpose block to its edges, every hidden address, and public ones."""

from __future__ import annotations

import contextlib
import socket
from ipaddress import IPv4Address, IPv6Address, ip_network

import pytest
from hypothesis import given, settings, strategies as st

from quarterdeck.core.ssrf import Address, blocked_address_reason, blocked_host_reason

PRIVATE = {
    "0.0.0.0/8": "unspecified",
    "10.0.0.0/8": "private",
    "100.64.0.0/10": "shared address space of a carrier",
    "127.0.0.0/8": "loopback",
    "169.254.0.0/16": "link-local",
    "172.16.0.0/12": "private",
    "192.0.0.0/24": "reserved for protocols",
    "192.0.2.0/24": "reserved for documentation",
    "192.31.196.0/24": "reserved for protocols",
    "192.52.193.0/24": "reserved for protocols",
    "192.88.99.0/24": "a 6to4 relay",
    "192.168.0.0/16": "private",
    "192.175.48.0/24": "reserved for protocols",
    "198.18.0.0/15": "reserved for benchmarks",
    "198.51.100.0/24": "reserved for documentation",
    "203.0.113.0/24": "reserved for documentation",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved",
    "168.63.129.16/32": "a metadata address",
    "::/128": "unspecified",
    "::1/128": "loopback",
    "fc00::/7": "private",
    "fe80::/10": "link-local",
    "fec0::/10": "private",
    "ff00::/8": "multicast",
    "64:ff9b:1::/48": "a local-use NAT64 address",
    "100::/64": "not a public address",
    "5f00::/16": "not a public address",
    "4000::/2": "not a public address",
    "8000::/2": "not a public address",
    "c000::/3": "not a public address",
    "2001::/23": "reserved for protocols",
    "2001:db8::/32": "reserved for documentation",
    "2002::/16": "a 6to4 address",
    "2620:4f:8000::/48": "reserved for protocols",
    "3fff::/20": "reserved for documentation",
}
"""Blocks without public hosts, and the reason given for each."""
METADATA = [
    "169.254.169.254",
    "169.254.170.2",
    "169.254.0.23",
    "168.63.129.16",
    "100.100.100.200",
    "192.0.0.192",
    "fd00:ec2::254",
    "fd20:ce::254",
    "fe80::a9fe:a9fe",
]
PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "9.255.255.255",
    "11.0.0.0",
    "100.63.255.255",
    "100.128.0.0",
    "126.255.255.255",
    "128.0.0.0",
    "168.63.129.15",
    "168.63.129.17",
    "169.253.255.255",
    "169.255.0.0",
    "172.15.255.255",
    "172.32.0.0",
    "192.0.1.0",
    "192.167.255.255",
    "192.169.0.0",
    "198.17.255.255",
    "198.20.0.0",
    "223.255.255.255",
    "2000::",
    "2001:200::",
    "2001:db7:ffff::",
    "2001:db9::",
    "2003::",
    "2606:4700:4700::1111",
    "2a00:1450:4001:81b::200e",
    "3ffe:ffff::",
]


def host_in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address


@pytest.mark.parametrize(("block", "reason"), PRIVATE.items())
def test_special_block_is_blocked_from_first_to_last_address(block: str, reason: str) -> None:
    network = ip_network(block)
    middle = network[network.num_addresses // 2]
    for address in (network[0], middle, network[-1]):
        assert blocked_address_reason(address) == blocked_address_reason(str(address)) == reason
        assert blocked_host_reason(host_in_url(str(address)))


@pytest.mark.parametrize("address", METADATA)
def test_cloud_metadata_addresses_are_blocked(address: str) -> None:
    assert blocked_address_reason(address)
    assert blocked_host_reason(host_in_url(address))


@pytest.mark.parametrize("address", PUBLIC)
def test_public_address_next_to_a_special_block_is_allowed(address: str) -> None:
    assert blocked_address_reason(address) is None
    assert blocked_host_reason(host_in_url(address)) is None
    assert blocked_host_reason(address) is None


@settings(deadline=None)
@given(st.ip_addresses(v=4) | st.ip_addresses(v=6))
def test_allowed_address_is_global_according_to_python(address: Address) -> None:
    is_nat64 = isinstance(address, IPv6Address) and address in ip_network("64:ff9b::/96")
    if blocked_address_reason(address) is None and not is_nat64:
        assert address.is_global
        assert not address.is_multicast
    if blocked_host_reason(host_in_url(str(address))) is None:
        assert blocked_address_reason(address) is None


# -- an IPv4 address inside an IPv6 one --------------------------------------------------------------------------


def embedded_forms(address: str) -> dict[str, str]:
    number = int(IPv4Address(address))
    high, low = number >> 16, number & 0xFFFF
    return {
        "mapped": f"::ffff:{address}",
        "mapped, in hexadecimal": f"::ffff:{high:x}:{low:x}",
        "mapped, in full": f"0000:0000:0000:0000:0000:ffff:{high:04x}:{low:04x}",
        "translated": f"::ffff:0:{high:x}:{low:x}",
        "compatible": f"::{address}",
        "NAT64": f"64:ff9b::{high:x}:{low:x}",
        "NAT64, mixed": f"64:ff9b::{address}",
        "6to4": f"2002:{high:x}:{low:x}::1",
        "Teredo": str(IPv6Address((0x2001_0000 << 96) | (number ^ 0xFFFF_FFFF))),
        "ISATAP": f"2606:4700::5efe:{high:x}:{low:x}",
        "ISATAP, unique": f"2606:4700::200:5efe:{high:x}:{low:x}",
    }


@pytest.mark.parametrize("form", embedded_forms("8.8.8.8"))
@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "100.64.0.1", "8.8.8.8"])
def test_host_with_an_ipv4_address_embedded_in_ipv6_is_blocked(form: str, address: str) -> None:
    spelling = embedded_forms(address)[form]
    for host in (spelling, f"[{spelling}]", f"[{spelling.upper()}]"):
        assert blocked_host_reason(host)


@pytest.mark.parametrize("form", [form for form in embedded_forms("8.8.8.8") if not form.startswith("NAT64")])
def test_resolved_ipv6_address_with_an_embedded_ipv4_address_is_blocked(form: str) -> None:
    for address in ("127.0.0.1", "8.8.8.8"):
        assert blocked_address_reason(embedded_forms(address)[form])


def test_resolved_nat64_address_is_allowed_only_for_a_public_host() -> None:
    assert blocked_address_reason("64:ff9b::8.8.8.8") is None
    for address, reason in (("127.0.0.1", "loopback"), ("10.1.2.3", "private"), ("169.254.169.254", "link-local")):
        assert blocked_address_reason(f"64:ff9b::{address}") == reason


@settings(deadline=None)
@given(st.ip_addresses(v=4))
def test_resolved_nat64_address_is_checked_as_its_ipv4_address(address: Address) -> None:
    assert blocked_address_reason(f"64:ff9b::{address}") == blocked_address_reason(address)


# -- spellings ---------------------------------------------------------------------------------------------------


def spellings(address: str) -> list[str]:
    """Every spelling of this address that inet_aton accepts, except the plain one."""
    a, b, c, d = (int(part) for part in address.split("."))
    number = int(IPv4Address(address))
    return [
        f"{number}",
        f"{number:#x}",
        f"0X{number:X}",
        f"0{number:o}",
        f"00000{number:o}",
        f"{a}.{b << 16 | c << 8 | d}",
        f"{a}.{b}.{c << 8 | d}",
        f"{a:#x}.{b:#x}.{c:#x}.{d:#x}",
        f"0{a:o}.0{b:o}.0{c:o}.0{d:o}",
        f"{a}.{b}.{c}.{d:#x}",
        f"{a:#x}.{b}.{c}.{d}",
        f"0{a:o}.{b}.{c}.{d}",
        f"{a:03d}.{b:03d}.{c:03d}.{d:03d}",
        f"{a}.{b}.{c}.{d}.",
        f"{number}.",
    ]


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "192.168.1.1", "8.8.8.8"])
def test_unusual_spelling_of_an_ipv4_address_is_blocked(address: str) -> None:
    for spelling in spellings(address):
        assert blocked_host_reason(spelling), spelling
        assert blocked_host_reason(spelling.upper()), spelling


@settings(deadline=None)
@given(
    st.lists(
        st.integers(0, 2**32).flatmap(
            lambda n: st.sampled_from([str(n), hex(n), hex(n).upper(), f"0{n:o}", f"00{n}", "0x"])
        ),
        min_size=1,
        max_size=5,
    ).map(".".join)
)
def test_spelling_accepted_by_inet_aton_is_checked_as_an_address(spelling: str) -> None:
    with contextlib.suppress(OSError):  # not an address to the C library
        address = str(IPv4Address(socket.inet_aton(spelling)))
        assert blocked_host_reason(spelling) or (spelling == address and blocked_address_reason(address) is None)
    if blocked_host_reason(spelling) is None:
        assert str(IPv4Address(spelling)) == spelling


@pytest.mark.parametrize(
    "name",
    ["localhost", "LOCALHOST", "LocalHost.", "api.localhost", "a.b.localhost.", "localhost.localdomain",
     "localhost6.localdomain6.localdomain", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback",
     "broadcasthost", "metadata.google.internal", "METADATA.GOOGLE.INTERNAL.", "printer.local", "nas.home.arpa"],
)  # fmt: skip
def test_local_and_private_network_names_are_blocked(name: str) -> None:
    assert blocked_host_reason(name) == "a private network name"


@pytest.mark.parametrize(
    "name",
    ["example.com", "EXAMPLE.com.", "a-b.example.co.uk", "my_service.example.com", "xn--mnchen-3ya.de", "x1.y2.z3",
     "127.0.0.1.nip.io", "1.example", "0x7f.example", "notlocalhost", "localhost.example.com", "service-a",
     "a" * 63 + ".com"],
)  # fmt: skip
def test_public_name_is_allowed_before_it_is_resolved(name: str) -> None:
    assert blocked_host_reason(name) is None


@pytest.mark.parametrize(
    "host",
    ["", ".", "..", "a..b", ".a", "-a.com", "a-.com", "a b", "a\tb", "a\n", "a/b", "a@b", "user@10.0.0.1", "a#b",
     "a?b", "a\\b", "%31%32%37.0.0.1", "localhost%00.example.com", "a%2eb", "[", "]", "[]", "[::1", "::1]", "[::1].",
     "[v1.fe80::]", "[127.0.0.1]", "::1%", "fe80::1%eth0", "[fe80::1%25eth0]", ":::", "1:2:3", "[::g]", "12345::",
     "１２７.０.０.１", "127。0。0。1", "①②⑦.0.0.1", "ⓛocalhost", "loca\u212ahost", "localhost\u200b", "münchen.de",
     "ａ.com", "a" * 64 + ".com", "a." * 127 + "com", "\x00", "a\x00.com"],
)  # fmt: skip
def test_host_that_is_neither_a_plain_name_nor_an_address_is_blocked(host: str) -> None:
    assert blocked_host_reason(host)


@pytest.mark.parametrize("text", ["", "example.com", "localhost", "2130706433", "127.1", "0x7f.0.0.1", "1.2.3"])
def test_text_that_is_not_an_ip_address_is_blocked_as_address(text: str) -> None:
    assert blocked_address_reason(text) == "not an IP address"


@settings(deadline=None)
@given(st.text(max_size=40))
def test_any_text_is_checked_without_error_and_only_plain_ascii_is_allowed(host: str) -> None:
    if blocked_host_reason(host) is None:
        assert host.isascii()
        assert host.isprintable()
        assert not set(host) & set(" /\\@#?%")
