"""Which hosts and addresses files may be downloaded from."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.config.media_hosts import HostRule, HostRules, is_public

PRIVATE = (
    *("127.0.0.1", "127.255.0.1", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254"),
    *("100.64.0.1", "192.0.2.1", "198.18.0.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "fe80::1", "fc00::1", "fd12::1", "fec0::1", "ff02::1", "ff0e::1", "2001:db8::1"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "2002:7f00:1::", "2002:0a00:0001::1", "64:ff9b::7f00:1", "64:ff9b::a00:1"),
    *("::7f00:1", "100::1", "2001::1"),
)
PUBLIC = ("1.1.1.1", "8.8.8.8", "93.184.216.34", "2606:4700:4700::1111", "2a00:1450:4001::1", "64:ff9b::101:101")


@pytest.mark.parametrize("address", PRIVATE)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(ip_address(address))
    for host in ("example.org", "localhost", "a.nip.io"):
        assert not HostRules.parse(["*", "*:*", host]).allows_address("http", host, 80, address)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses(address: str) -> None:
    assert is_public(ip_address(address))
    assert HostRules.parse(["example.org"]).allows_address("https", "example.org", 443, address)


_v4 = st.integers(0, 2**32 - 1).map(IPv4Address)


@given(_v4)
def test_an_address_inside_another_counts(inside: IPv4Address) -> None:
    number = int(inside)
    embedding = [
        IPv6Address((0xFFFF << 32) | number),
        IPv6Address((0x2002 << 112) | (number << 80) | 1),
        IPv6Address((0x64FF9B << 96) | number),
    ]
    for outer in embedding:
        assert not is_public(outer) or is_public(inside)


@given(st.integers(0, 2**128 - 1).map(IPv6Address) | _v4)
def test_what_is_not_public_is_allowed_only_by_name(address: IPv4Address | IPv6Address) -> None:
    text = str(address)
    others = HostRules.parse(["*:*", "example.org:*", "127.0.0.1.example.org:*"])
    assert others.allows_address("http", "example.org", 80, text) == is_public(address)
    host = f"[{text}]" if address.version == 6 else text
    named = HostRules.parse([f"{host}:8080"])
    assert named.allows_host("http", text, 8080)
    assert named.allows_address("http", text, 8080, text)
    assert named.allows_address("http", text, 80, text) == is_public(address), "only at its port"
    assert named.allows_address("http", "example.org", 8080, text) == is_public(address), "not by another name"


_labels = st.text("abcxyz-", min_size=1, max_size=6)
_names = st.lists(_labels, min_size=1, max_size=4).map(".".join)


@given(_names, _names, st.integers(1, 65535))
def test_names_and_ports(name: str, other: str, port: int) -> None:
    exact, below = HostRule.parse(name.upper()), HostRule.parse(f"*.{name}")
    assert exact.allows("http", name, 80)
    assert exact.allows("https", name, 443)
    assert exact.allows("http", name, port) == (port == 80)
    assert HostRule.parse(f"{name}:{port}").allows("https", name, port)
    assert HostRule.parse(f"{name}:*").allows("https", name, port)
    assert exact.allows("http", other, 80) == (other == name)
    assert below.allows("http", f"{other}.{name}", 80)
    assert not below.allows("http", name, 80)
    assert not below.allows("http", f"x{name}", 80), "a name that merely ends the same"
    assert HostRules.parse([name]).allows_host("http", name.upper() + ".", 80), "as DNS sees it"


@pytest.mark.parametrize("entry", ["", "http://a", "a/b", "a b", "a:99999", "a:b", "*a", "a*", "a.*.b", "u@a", "*.*.a"])
def test_entries_that_are_no_hosts(entry: str) -> None:
    with pytest.raises(ValueError, match=r"is not a host|no valid port"):
        HostRule.parse(entry)


@given(st.text(max_size=20) | st.text("ab.*:[]19", max_size=10))
def test_any_text_is_a_host_or_an_error(entry: str) -> None:
    try:
        rule = HostRule.parse(entry)
    except ValueError:
        return
    assert rule.name
