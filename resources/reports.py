"""The resource ``reports``: where the reports of this code location's domains are written.

What they say is decided in lakehouse_assets/domains/.
"""

from __future__ import annotations

from pathlib import Path

import dagster as dg

from lakehouse_assets import put_file
from lakehouse_assets.environment.settings import read_home


class Reports(dg.ConfigurableResource[None]):
    """A folder of files that people read."""

    folder: str
    """Its path; it need not exist."""

    def write(self, name: str, content: bytes) -> Path:
        """Writes a report, or replaces it in one piece, and returns its path. Raises OSError."""
        path = Path(self.folder, name)
        put_file(path, content)
        return path


def reports_at_home() -> Reports:
    """Returns the reports' folder of this environment, ``<LAKEHOUSE_HOME>/reports``."""
    return Reports(folder=str(read_home() / "reports"))
