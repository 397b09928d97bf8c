"""Holds that the API page of `make docs` has each public name of lakehouse_assets, each with a docstring.
An extension of Griffe, which reads the code without importing it; mkdocs.yml names it. A warning fails the build."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe

from lakehouse_assets import HOMES

PAGE = Path(__file__).parent / "docs_site" / "api.md"


class PublicNames(griffe.Extension):
    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        told = set(re.findall(r"^::: lakehouse_assets\.(\w+)$", PAGE.read_text(), re.MULTILINE))
        for name in HOMES:
            if name not in told:
                griffe.logger.warning(f"{PAGE.name} lacks the public name {name}")
            if not pkg[name].has_docstring:
                griffe.logger.warning(f"the public name {name} has no docstring")
