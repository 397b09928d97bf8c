"""The levels of maintenance that there are: a new one is a file of its own and a line here.

What a level is, is in level.py; its name is a word of declare/care.py's.
"""

from __future__ import annotations

from lakehouse_assets.maintenance.collect_level import CollectLevel
from lakehouse_assets.maintenance.expire_level import ExpireLevel
from lakehouse_assets.maintenance.manifests_level import ManifestsLevel
from lakehouse_assets.maintenance.rewrite_levels import DeletesLevel, FragmentsLevel, SortLevel, UndersizedLevel

LEVELS = (
    DeletesLevel(),
    UndersizedLevel(),
    FragmentsLevel(),
    SortLevel(),
    ManifestsLevel(),
    ExpireLevel(),
    CollectLevel(),
)
"""A partition is rewritten once, for the first of these that asks for it."""
