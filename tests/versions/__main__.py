"""``python -m tests.versions`` builds the environments that are not there yet, once.
What they are is in the package."""

from __future__ import annotations

from tests.versions import COMBINATIONS

for combination in COMBINATIONS:
    if not combination.built:
        print(f"building {combination} in {combination.folder} (some minutes, once) …", flush=True)
        combination.build()
