"""What both sides of the process border import of receipts. How they are found: tests/unit/drive/test_journal.py."""

from __future__ import annotations

import subprocess
import sys


def test_what_workers_import_needs_neither_dagster_nor_spark() -> None:
    code = "import sys, lakehouse_assets.wire.receipts; print({'dagster', 'pyspark'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == "set()\n"
