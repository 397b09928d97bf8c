"""Generates figures in the shape of Japan's customs trade statistics: the same columns, codes and skew.

A seed makes them up: none is real.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from lakehouse_assets.domains.trade.shape import CORRECTION, KEY

if TYPE_CHECKING:
    import polars as pl

SEED = 2017
COUNTRIES, OFFICES, CODES = 220, 130, 9_000
"""About as many as the statistics have."""
# Ways to make a line's fields unreadable.
MALFORMED: tuple[Callable[[list[str]], list[str]], ...] = (
    lambda fields: [*fields[:-1], "n.a."],
    lambda fields: fields[:-3],
    lambda fields: [*fields[:3], "", *fields[4:]],  # no ym
)


def figures(ym: str, rows: int) -> pl.DataFrame:
    """Returns one month's figures, one row per key. ym: YYYYMM. rows: the most, as keys may be drawn twice."""
    import numpy as np
    import polars as pl

    random = np.random.default_rng((SEED, int(ym)))
    drawn = int(rows * 1.4) + 10  # more than needed: keys that are drawn again are dropped
    country, office, code = (_skewed(random, drawn, many) for many in (COUNTRIES, OFFICES, CODES))
    # Most values are small and a few are very large; each is 1 or more.
    value = np.exp(random.normal(6.5, 2.2, drawn)).astype("int64") + 1
    # Spreads the codes over nine digits that begin with 01 to 97, the chapters of goods.
    hs9 = pl.Series(code * 110_017 % 970_000_000 + 10_000_000).cast(pl.String).str.zfill(9)
    drawn_rows = pl.DataFrame(
        {
            "exp_imp": random.choice(["1", "2"], drawn, p=[0.4, 0.6]),
            "Year": ym[:4],
            "month": ym[4:],
            "ym": ym,
            # From 103 and 100 on, so that each code has three digits.
            "Country": pl.Series(country + 103).cast(pl.String).str.zfill(3),
            "Custom": pl.Series(office + 100).cast(pl.String).str.zfill(3),
            "hs2": hs9.str.head(2),
            "hs4": hs9.str.head(4),
            "hs6": hs9.str.head(6),
            "hs9": hs9,
            "Q1": random.integers(0, 50_000, drawn),
            "Q2": random.integers(0, 900_000, drawn),
            "Value": value,
        }
    )
    return drawn_rows.unique(KEY, keep="first", maintain_order=True).head(rows)


def revisions(ym: str, rows: int, of: int, revision: int) -> pl.DataFrame:
    """Returns corrections of one month's figures; some come twice.

    Of ten, eight change a value, one deletes its row, one adds another row. of: the ``rows`` of figures(). revision:
    from 1; the latest counts.
    """
    import numpy as np
    import polars as pl

    random = np.random.default_rng((SEED, int(ym), revision))
    chosen = figures(ym, of).sample(rows, seed=revision, shuffle=True).with_row_index("n")
    kind = pl.col("n") % 10
    corrected = chosen.with_columns(
        Value=pl.col("Value") + pl.Series(random.integers(1, 1_000, rows)),
        # Another code, so usually a key that the month lacks: the correction adds a row.
        hs9=pl.when(kind == 9).then(pl.lit("9") + pl.col("hs9").str.tail(8)).otherwise("hs9"),
        revision=pl.lit(revision),
        op=pl.when(kind == 8).then(pl.lit("D")).otherwise(pl.lit("U")),
    ).select(CORRECTION)
    return pl.concat([corrected, corrected.head(rows // 20)])


def countries() -> pl.DataFrame:
    """Returns the code and made-up name of each country."""
    import polars as pl

    codes = [str(103 + n).zfill(3) for n in range(COUNTRIES)]
    return pl.DataFrame({"Country": codes, "name": [f"Country {code}" for code in codes]})


def malformed(table: pl.DataFrame) -> Iterator[str]:
    """Makes malformed lines of a table's rows: about one in 20,000, at least one of each kind."""
    many = max(len(MALFORMED), table.height // 20_000)
    for n, row in enumerate(table.sample(many, seed=SEED).iter_rows()):
        fields = [str(field) for field in row]
        yield ",".join(MALFORMED[n % len(MALFORMED)](fields))


def _skewed(random: Any, many: int, of: int) -> Any:
    """Draws ``many`` numbers from 0 to ``of`` - 1, half of them from the first tenth."""
    return (of * random.power(0.3, many)).astype("int64").clip(0, of - 1)
