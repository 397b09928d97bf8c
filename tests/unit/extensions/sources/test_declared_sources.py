"""Which tables can't have the sources that they declare, seen over all tables of a code location."""

from __future__ import annotations

from lakehouse_assets.extensions.sources.extension import Sources
from tests.support.hot_tables import events_table, state_table


def test_a_source_that_several_tables_would_purge_is_a_problem() -> None:
    of_topic = [events_table(), events_table(identifier="demo.events_again")]
    (problem,) = Sources().problems([state_table(), state_table(identifier="demo.other"), *of_topic])
    assert "demo.state, demo.other" in problem
    assert "postgres:state" in problem
