"""Where the server may be sent: every special block to its edges, every way to hide an address, and what is public."""

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
    "100.64.0.0/10": "shared by the customers of a carrier",
    "127.0.0.0/8": "loopback",
    "169.254.0.0/16": "link-local",
    "172.16.0.0/12": "private",
    "192.0.0.0/24": "reserved for protocols",
    "192.0.2.0/24": "for documentation",
    "192.31.196.0/24": "reserved for protocols",
    "192.52.193.0/24": "reserved for protocols",
    "192.88.99.0/24": "a relay to IPv6",
    "192.168.0.0/16": "private",
    "192.175.48.0/24": "reserved for protocols",
    "198.18.0.0/15": "for benchmarks",
    "198.51.100.0/24": "for documentation",
    "203.0.113.0/24": "for documentation",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved",
    "168.63.129.16/32": "a metadata address",
    "::/128": "unspecified",
    "::1/128": "loopback",
    "fc00::/7": "private",
    "fe80::/10": "link-local",
    "fec0::/10": "private",
    "ff00::/8": "multicast",
    "64:ff9b:1::/48": "a translation to IPv4 for local use",
    "100::/64": "not given out as a public address",
    "5f00::/16": "not given out as a public address",
    "4000::/2": "not given out as a public address",
    "8000::/2": "not given out as a public address",
    "c000::/3": "not given out as a public address",
    "2001::/23": "reserved for protocols",
    "2001:db8::/32": "for documentation",
    "2002::/16": "a tunnel to IPv4",
    "2620:4f:8000::/48": "reserved for protocols",
    "3fff::/20": "for documentation",
}
"""The blocks that no public host is in."""
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


def in_a_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address


@pytest.mark.parametrize(("block", "why"), PRIVATE.items())
def test_a_special_block_is_refused_from_its_first_address_to_its_last(block: str, why: str) -> None:
    network = ip_network(block)
    middle = network[network.num_addresses // 2]
    for address in (network[0], middle, network[-1]):
        assert blocked_address_reason(address) == blocked_address_reason(str(address)) == why
        assert blocked_host_reason(in_a_url(str(address)))


@pytest.mark.parametrize("address", METADATA)
def test_no_cloud_is_asked_for_its_metadata(address: str) -> None:
    assert blocked_address_reason(address)
    assert blocked_host_reason(in_a_url(address))


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_let_through_also_right_beside_a_special_one(address: str) -> None:
    assert blocked_address_reason(address) is None
    assert blocked_host_reason(in_a_url(address)) is None
    assert blocked_host_reason(address) is None


@settings(deadline=None)
@given(st.ip_addresses(v=4) | st.ip_addresses(v=6))
def test_what_is_let_through_is_global_to_pythons_own_registry_too(address: Address) -> None:
    inside = isinstance(address, IPv6Address) and address in ip_network("64:ff9b::/96")
    if blocked_address_reason(address) is None and not inside:
        assert address.is_global
        assert not address.is_multicast
    if blocked_host_reason(in_a_url(str(address))) is None:
        assert blocked_address_reason(address) is None


# -- an IPv4 address inside an IPv6 one --------------------------------------------------------------------------


def wrapped(address: str) -> dict[str, str]:
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


@pytest.mark.parametrize("way", wrapped("8.8.8.8"))
@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "100.64.0.1", "8.8.8.8"])
def test_no_ipv4_address_hides_in_an_ipv6_address_that_somebody_wrote(way: str, address: str) -> None:
    spelt = wrapped(address)[way]
    for host in (spelt, f"[{spelt}]", f"[{spelt.upper()}]"):
        assert blocked_host_reason(host)


@pytest.mark.parametrize("way", [way for way in wrapped("8.8.8.8") if not way.startswith("NAT64")])
def test_what_a_resolver_gives_is_no_such_address_either(way: str) -> None:
    for address in ("127.0.0.1", "8.8.8.8"):
        assert blocked_address_reason(wrapped(address)[way])


def test_of_nat64_a_resolver_may_give_what_leads_to_a_public_host_and_nothing_else() -> None:
    assert blocked_address_reason("64:ff9b::8.8.8.8") is None
    for address, why in (("127.0.0.1", "loopback"), ("10.1.2.3", "private"), ("169.254.169.254", "link-local")):
        assert blocked_address_reason(f"64:ff9b::{address}") == why


@settings(deadline=None)
@given(st.ip_addresses(v=4))
def test_nat64_is_judged_as_the_address_in_it(address: Address) -> None:
    assert blocked_address_reason(f"64:ff9b::{address}") == blocked_address_reason(address)


# -- spellings ---------------------------------------------------------------------------------------------------


def spellings(address: str) -> list[str]:
    """Every way in which inet_aton would still find this address, other than the plain one."""
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
def test_an_address_is_spelt_plainly_or_not_at_all(address: str) -> None:
    for spelt in spellings(address):
        assert blocked_host_reason(spelt), spelt
        assert blocked_host_reason(spelt.upper()), spelt


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
def test_whatever_the_c_library_takes_for_an_address_is_judged_as_one(spelt: str) -> None:
    with contextlib.suppress(OSError):  # the library takes it for none
        found = str(IPv4Address(socket.inet_aton(spelt)))
        assert blocked_host_reason(spelt) or (spelt == found and blocked_address_reason(found) is None)
    if blocked_host_reason(spelt) is None:
        assert str(IPv4Address(spelt)) == spelt


@pytest.mark.parametrize(
    "name",
    ["localhost", "LOCALHOST", "LocalHost.", "api.localhost", "a.b.localhost.", "localhost.localdomain",
     "localhost6.localdomain6.localdomain", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback",
     "broadcasthost", "metadata.google.internal", "METADATA.GOOGLE.INTERNAL.", "printer.local", "nas.home.arpa"],
)  # fmt: skip
def test_names_of_this_machine_and_of_private_networks_are_refused(name: str) -> None:
    assert blocked_host_reason(name) == "a name of a private network"


@pytest.mark.parametrize(
    "name",
    ["example.com", "EXAMPLE.com.", "a-b.example.co.uk", "my_service.example.com", "xn--mnchen-3ya.de", "x1.y2.z3",
     "127.0.0.1.nip.io", "1.example", "0x7f.example", "notlocalhost", "localhost.example.com", "service-a",
     "a" * 63 + ".com"],
)  # fmt: skip
def test_a_name_is_let_through_until_its_addresses_are_known(name: str) -> None:
    assert blocked_host_reason(name) is None


@pytest.mark.parametrize(
    "host",
    ["", ".", "..", "a..b", ".a", "-a.com", "a-.com", "a b", "a\tb", "a\n", "a/b", "a@b", "user@10.0.0.1", "a#b",
     "a?b", "a\\b", "%31%32%37.0.0.1", "localhost%00.example.com", "a%2eb", "[", "]", "[]", "[::1", "::1]", "[::1].",
     "[v1.fe80::]", "[127.0.0.1]", "::1%", "fe80::1%eth0", "[fe80::1%25eth0]", ":::", "1:2:3", "[::g]", "12345::",
     "１２７.０.０.１", "127。0。0。1", "①②⑦.0.0.1", "ⓛocalhost", "loca\u212ahost", "localhost\u200b", "münchen.de",
     "ａ.com", "a" * 64 + ".com", "a." * 127 + "com", "\x00", "a\x00.com"],
)  # fmt: skip
def test_what_is_neither_a_plain_name_nor_an_address_is_refused(host: str) -> None:
    assert blocked_host_reason(host)


@pytest.mark.parametrize("text", ["", "example.com", "localhost", "2130706433", "127.1", "0x7f.0.0.1", "1.2.3"])
def test_what_is_no_address_is_refused_as_one(text: str) -> None:
    assert blocked_address_reason(text) == "no address"


@settings(deadline=None)
@given(st.text(max_size=40))
def test_any_text_is_judged_without_a_fault_and_only_plain_ascii_passes(host: str) -> None:
    if blocked_host_reason(host) is None:
        assert host.isascii()
        assert host.isprintable()
        assert not set(host) & set(" /\\@#?%")
