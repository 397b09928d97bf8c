"""Every part of ``make bench`` in its smallest form: none of them may have stopped working without anybody noticing.
What the parts find is docs/measured.md's to tell."""

from pathlib import Path

import pytest

from bench.__main__ import NAMES, main


@pytest.mark.long("Each part starts what it measures, in its smallest form too.")
@pytest.mark.spark
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.timeout(1800)
def test_every_part_of_the_bench_works(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path))
    assert main([name, "--quick"]) == 0, capsys.readouterr().out
    machine, *sections = (tmp_path / "reports" / "bench.md").read_text().split("\n## ")[1:]
    assert machine.startswith("Machine")
    assert sections
    for section in sections:
        rows = [line for line in section.splitlines() if line.startswith("| ")]
        assert len(rows) > 2, f"no figures: {section}"
