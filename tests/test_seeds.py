from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddock.seeds import seed_of


def test_the_seeds_are_the_documented_ones() -> None:
    # printf job-1 | sha256sum: 026ab639 c21df8aa …; modulo 2**31 leaves 421df8aa.
    assert seed_of("job-1") == 0x421DF8AA == 1109260458
    assert seed_of("größe") == 459780095


@given(st.text(st.characters(codec="utf-8")))
def test_every_seed_fits_every_server(name: str) -> None:
    assert 0 <= seed_of(name) < 2**31
