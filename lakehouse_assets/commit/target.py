"""The target: the Iceberg table behind a declaration, created when it is missing, compared when it is there.
No rows and no snapshots; schema changes are refused here until a policy decides them."""

from __future__ import annotations

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError
from pyiceberg.table import Table as IcebergTable

from lakehouse_assets.declare.table import Table
from lakehouse_assets.declare.terms import spec_text
from lakehouse_assets.errors import PublishRefused

# hash: rows are clustered by partition before the write, so that a writer keeps one file open and not one a
# partition. Iceberg's default for sorted tables, range, would compute the step twice (it samples first).
DEFAULTS = {"write.distribution-mode": "hash", "format-version": "2"}


def open_target(catalog: Catalog, table: Table) -> IcebergTable:
    """The declared table, created if need be. Raises PublishRefused where the table there is another one, and where a
    new one would lie on the rows of one that the catalog has lost."""
    try:
        target = catalog.load_table(table.identifier)
    except NoSuchTableError:
        target = _create(catalog, table)
    _compare(table, target)
    return target


def _create(catalog: Catalog, table: Table) -> IcebergTable:
    from lakehouse_assets.commit.remains import refusal  # imports PyArrow: half a second, where a table is missing

    namespace = table.identifier.rpartition(".")[0]
    try:
        catalog.create_namespace(namespace)
    except Exception:  # it is there, or came meanwhile: a SQL catalog then breaks a constraint of its own
        if not catalog.namespace_exists(namespace):
            raise
    if refused := refusal(catalog, table):
        try:
            return catalog.load_table(table.identifier)  # another run has made it, and published, since it was missing
        except NoSuchTableError:
            raise PublishRefused(refused) from None
    try:
        return catalog.create_table(
            table.identifier,
            schema=table.schema,
            partition_spec=table.spec,
            sort_order=table.order,
            properties={**DEFAULTS, **table.properties},
        )
    except TableAlreadyExistsError:
        return catalog.load_table(table.identifier)


def _compare(table: Table, target: IcebergTable) -> None:
    declared = {c.name: str(c.field_type) for c in table.schema.columns}
    found = {c.name: str(c.field_type) for c in target.schema().columns}
    differences = [
        f"column {n}: declared {t}, found {found.get(n, 'none')}" for n, t in declared.items() if found.get(n) != t
    ]
    differences += [f"column {n}: not declared, found {t}" for n, t in found.items() if n not in declared]
    optional = {c.name for c in table.schema.columns if not c.required}
    if nulls := [c.name for c in target.schema().columns if c.required and c.name in optional]:
        # The audit goes by the declaration, a fork takes any null: they would land in a column that has none.
        differences.append(f"columns {', '.join(nulls)}: declared optional, found required")
    wanted, actual = spec_text(table.spec, table.schema), spec_text(target.spec(), target.schema())
    if actual != wanted:
        differences.append(f"partitioned by: declared {wanted}, found {actual}")
    if differences:
        raise PublishRefused(
            f"table {table.identifier}: the declaration and the table in the catalog differ: {'; '.join(differences)}. "
            "Change the declaration, or evolve the table (ALTER TABLE in any engine), then materialize again"
        )
