"""Write modes: what is taken for one, and that a mode's options reach the code version."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from lakehouse_assets.declare.modes import Overwrite, Rule
from lakehouse_assets.errors import DeclarationError
from tests.support.tables import numbers


@pytest.mark.parametrize("value", [None, "overwrite", Overwrite], ids=["nothing", "text", "class"])
def test_only_a_write_mode_is_taken_for_one(value: object) -> None:
    with pytest.raises(DeclarationError, match=r"'demo.numbers': write_mode is .*, it must be a write mode"):
        numbers(write_mode=value)


def test_a_mode_and_its_options_are_part_of_the_code_version() -> None:
    @dataclass(frozen=True)
    class Lenient(Overwrite):
        """A mode of somebody's own."""

        option: int = 1
        rules = frozenset(Rule) - {Rule.EMPTY}

    assert repr(Overwrite()) == "Overwrite()", "receipts that are staged already stay valid"
    modes = (Overwrite(), Lenient(), Lenient(2))
    assert len({numbers(write_mode=mode).code_version for mode in modes}) == len(modes)
