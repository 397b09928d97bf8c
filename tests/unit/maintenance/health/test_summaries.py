"""Summaries of a manifest are exact: whatever files it lists, sums of theirs."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lakehouse_assets.maintenance.health.summaries import LiveFile, SizeLimits, summarize
from tests.support.manifests import DATA, EQUALITY, POSITIONS

LIMITS = SizeLimits(fragment=128, undersized=768)
FILES = st.builds(
    LiveFile,
    content=st.sampled_from([DATA, POSITIONS, EQUALITY]),
    partition=st.sampled_from([(), (1,), (None,), ("a", 2)]),
    rows=st.integers(0, 1000),
    size=st.sampled_from([0, 1, 127, 128, 129, 767, 768, 769, 1024, 10**12]),
    sequence=st.integers(0, 50),
)


@settings(max_examples=100, deadline=None)
@given(files=st.lists(FILES))
def test_every_file_is_counted_once_where_it_belongs(files: list[LiveFile]) -> None:
    found = summarize(7, files, LIMITS)
    assert len(found) == len({(file.content, file.partition) for file in files})
    for summary in found:
        own = [f for f in files if (f.content, f.partition) == (summary.content, summary.partition)]
        fragments = [f.size for f in own if f.size <= 128]
        undersized = [f.size for f in own if 128 < f.size <= 768]
        assert summary == (
            *(7, own[0].content, own[0].partition),
            *(len(own), sum(f.size for f in own), sum(f.rows for f in own)),
            *(len(fragments), sum(fragments), len(undersized), sum(undersized)),
            *(min(f.sequence for f in own), max(f.sequence for f in own)),
        )
