from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddock.seeds import seed_of


def test_the_numbers_are_the_documented_ones_for_ever() -> None:
    # printf job-1 | sha256sum: 026ab639 c21df8aa …; modulo 2**31 leaves 421df8aa.
    assert seed_of("job-1") == 0x421DF8AA == 1109260458
    assert seed_of("größe") == 459780095


@given(st.text(st.characters(codec="utf-8")))
def test_every_name_has_a_seed_that_every_server_takes(name: str) -> None:
    assert 0 <= seed_of(name) < 2**31
