"""Nothing below the other rooms: resources/ knows no module of lakehouse_assets/, neither by import nor by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LOADED = "print(sorted(name for name in sys.modules if name.startswith('lakehouse_assets')))"


@pytest.mark.parametrize("module", ["settings", "catalog", "spark_setup", "launchers.local", "launchers.spark_submit"])
def test_importing_resources_loads_nothing_of_the_rooms_above(module: str) -> None:
    code = f"import sys, resources.{module}; {LOADED}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_no_file_of_resources_names_the_package_but_the_list_of_packages() -> None:
    naming = [f for f in (ROOT / "resources").rglob("*.py") if "lakehouse_assets" in f.read_text()]
    assert [f.name for f in naming] == ["package.py"]
