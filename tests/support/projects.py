"""Projects of the command line: a folder whose pyproject.toml names a code location of the tests. No tests here."""

from __future__ import annotations

from pathlib import Path


def make_project(folder: Path, module: str) -> Path:
    """A project of that module's ``defs``, called by the module's name; returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    named = f'module_name = "{module}"\ncode_location_name = "{module}"\n'
    (folder / "pyproject.toml").write_text(f"[tool.dagster]\n{named}")
    return folder
