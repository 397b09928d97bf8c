"""One run of one day of the table of kills.py; its exit status says how it ended."""

from __future__ import annotations

import sys

from bench.kills_steps import TABLE
from bench.one_run import materialize


def main(day: str) -> int:
    result, _, _ = materialize(TABLE, day, day)
    return 0 if result.success else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
