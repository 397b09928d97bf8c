"""Tables in YAML, as a Dagster component. Attributes are the fields of Table and mean the same."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from functools import cache, cached_property
from types import UnionType
from typing import Annotated, Any, Literal, cast

import dagster as dg
from dagster.components.component_scaffolding import scaffold_component
from dagster.components.resolved.core_models import (
    DailyPartitionsDefinitionModel,
    HourlyPartitionsDefinitionModel,
    StaticPartitionsDefinitionModel,
    TimeWindowPartitionsDefinitionModel,
    WeeklyPartitionsDefinitionModel,
    resolve_partitions_def,
)
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, create_model

from lakehouse_assets import first_table
from lakehouse_assets.build_location import shared_definitions
from lakehouse_assets.declare.field_docs import field_docs
from lakehouse_assets.declare.modes import Append, FullRefresh, Merge, Overwrite
from lakehouse_assets.declare.table import Table
from lakehouse_assets.extensions.builtin import EXTENSIONS
from lakehouse_assets.extensions.sources.kafka import KafkaTopic
from lakehouse_assets.extensions.sources.postgres import PostgresTable
from lakehouse_assets.run.domain import Domain, location_settings, with_step_inputs
from lakehouse_assets.run.updated import when_updated

MAPPINGS: Mapping[str, Callable[[], dg.PartitionMapping]] = {
    "all": dg.AllPartitionMapping,
    "last": dg.LastPartitionMapping,
}


class Attributes(BaseModel):
    """One object's attributes; missing ones keep its class's defaults."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    def build(self) -> Any:
        """Returns the object."""
        raise NotImplementedError

    def given(self) -> dict[str, Any]:
        """Returns the given attributes by name, built."""
        return {name: _built(getattr(self, name)) for name in self.model_fields_set}


def _spell_by_type(schema: dict[str, Any]) -> None:
    """Spells a choice by ``type`` so that validators name what is wrong with the chosen one.

    For ``oneOf`` they only say that the value "is not valid under any of the given schemas".
    """
    if "discriminator" not in schema:
        return
    kinds = schema.pop("discriminator")["mapping"]
    del schema["oneOf"]
    schema |= {"type": "object", "required": ["type"], "properties": {"type": {"enum": [*kinds]}}}
    schema["allOf"] = [
        {"if": {"properties": {"type": {"const": kind}}}, "then": {"$ref": reference}}
        for kind, reference in kinds.items()
    ]


BY_TYPE = Field(discriminator="type", json_schema_extra=_spell_by_type)
"""Marks a union of classes: the attribute ``type`` chooses among them."""


def _key(text: Any) -> dg.AssetKey:
    """Parses an asset's key. Raises ValueError for anything but a text."""
    if not isinstance(text, str):
        raise ValueError("an asset's key is a text, its parts with slashes between them")
    return dg.AssetKey.from_user_string(text)


Key = Annotated[
    Any,
    BeforeValidator(_key),
    WithJsonSchema({"type": "string", "examples": ["nyc/flights"]}),
]
"""An asset's key, with slashes between its parts."""


class Dependency(Attributes):
    """A dependency whose partitions are of another kind."""

    asset: Key
    """The asset."""
    partition_mapping: Literal["all", "last"]
    """Which of its partitions each partition reads."""

    def build(self) -> dg.AssetDep:
        """Returns the dependency."""
        return dg.AssetDep(self.asset, partition_mapping=MAPPINGS[self.partition_mapping]())


class Automation(Attributes):
    """When Dagster materializes a table automatically."""

    when_updated: Sequence[Key]
    """The assets whose updates it follows."""

    def build(self) -> dg.AutomationCondition[dg.AssetKey]:
        """Returns the condition."""
        return when_updated(*self.when_updated)


class Retries(Attributes):
    """How often a failed run is retried."""

    max_retries: int
    """The most retries."""
    delay: float | None = None
    """Seconds before a retry."""

    def build(self) -> dg.RetryPolicy:
        """Returns the policy."""
        return dg.RetryPolicy(**self.given())


@cache
def attributes_of(cls: type, kind: str | None = None) -> type[Attributes]:
    """Makes the attributes of a dataclass, with its documentation. kind: its ``type`` among several classes."""
    hints, docs = typing.get_type_hints(cls), field_docs(cls)
    made: dict[str, Any] = {"type": (Literal[kind], kind)} if kind else {}
    for field in dataclasses.fields(cls):
        is_required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        hint = OF_TABLE.get(field.name) if cls is Table else None
        # Only such a default can be shown; pydantic takes ``...`` for no default.
        is_plain = isinstance(field.default, bool | int | float | str)
        info = Field(
            ... if is_required else field.default if is_plain else None,
            description=docs.get(field.name),
            json_schema_extra=None if is_plain else _without_default,
        )
        made[field.name] = (hint or _attribute(hints[field.name]), info)

    def build(self: Attributes) -> Any:
        return cls(**{name: value for name, value in self.given().items() if name in hints})  # without "type"

    doc = inspect.cleandoc(cls.__doc__ or "").partition("\n\nExamples:")[0]
    model = create_model(f"{cls.__name__}Attributes", __base__=Attributes, __doc__=doc, **made)
    model.build = build  # type: ignore[method-assign]
    return model


def _without_default(schema: dict[str, Any]) -> None:
    """Drops the default None: it stands for a default that YAML can't spell."""
    schema.pop("default", None)
    _spell_by_type(schema)


def _attribute(hint: Any) -> Any:
    """Returns the type of an attribute for a field's type: dataclasses within it become their attributes."""
    if dataclasses.is_dataclass(hint):
        return attributes_of(cast("type", hint))
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is UnionType:
        return typing.Union[tuple(map(_attribute, arguments))]  # noqa: UP007  made at run time
    if typing.get_origin(hint) is Collection:  # pydantic does not support Collection; YAML has lists
        return Sequence[arguments]  # type: ignore[valid-type]
    if arguments and typing.get_origin(hint) is not Annotated:
        return typing.get_origin(hint)[tuple(map(_attribute, arguments))]
    return hint


def _built(value: Any) -> Any:
    """Returns a value as Table takes it: attributes within it become the objects that they describe."""
    if isinstance(value, Attributes):
        return value.build()
    if isinstance(value, dg.Model):  # Dagster's own, of partitions
        return resolve_partitions_def(None, value)  # type: ignore[arg-type]  # it does not look at its context
    # Not isinstance(): an asset's key is a tuple, too.
    if type(value) in (list, tuple):
        return [_built(one) for one in value]
    return value


class MonthlyPartitions(Attributes):
    """Dagster's MonthlyPartitionsDefinition, which Dagster's own components lack."""

    type: Literal["monthly"]
    """The kind of partitions."""
    start_date: str
    """The first month's first day, such as ``2026-01-01``."""
    end_date: str | None = None
    """The day before which the last month ends; without it, each month that is over has a partition."""
    timezone: str | None = None
    """The time zone of the months, such as ``Europe/Berlin``; UTC by default."""
    minute_offset: int = 0
    """Minutes past the hour at which a month begins."""
    hour_offset: int = 0
    """Hours past midnight at which a month begins."""
    day_offset: int = 1
    """The day of the month on which a month begins."""

    def build(self) -> dg.MonthlyPartitionsDefinition:
        """Returns the definition."""
        return dg.MonthlyPartitionsDefinition(**{name: value for name, value in self.given().items() if name != "type"})


class DynamicPartitions(Attributes):
    """Dagster's DynamicPartitionsDefinition: keys are added at run time."""

    type: Literal["dynamic"]
    """The kind of partitions."""
    name: str
    """The name under which Dagster stores the keys."""

    def build(self) -> dg.DynamicPartitionsDefinition:
        """Returns the definition."""
        return dg.DynamicPartitionsDefinition(name=self.name)


# The models with "Definition" in their names are Dagster's own.
ONE_DIMENSION = (
    DailyPartitionsDefinitionModel
    | HourlyPartitionsDefinitionModel
    | MonthlyPartitions
    | StaticPartitionsDefinitionModel
    | TimeWindowPartitionsDefinitionModel
    | WeeklyPartitionsDefinitionModel
    | DynamicPartitions
)


class MultiPartitions(Attributes):
    """Dagster's MultiPartitionsDefinition: two dimensions, each with its own partitions."""

    type: Literal["multi"]
    """The kind of partitions."""
    partitions: Mapping[str, Annotated[ONE_DIMENSION, BY_TYPE]]
    """The dimensions by name, each a column of the table."""

    def build(self) -> dg.MultiPartitionsDefinition:
        """Returns the definition."""
        return dg.MultiPartitionsDefinition({name: _built(of) for name, of in self.partitions.items()})


OF_TABLE: Mapping[str, Any] = {
    "partitions": Annotated[ONE_DIMENSION | MultiPartitions, BY_TYPE],
    "write_mode": Annotated[
        attributes_of(Overwrite, "overwrite")
        | attributes_of(FullRefresh, "full_refresh")
        | attributes_of(Append, "append")
        | attributes_of(Merge, "merge"),
        BY_TYPE,
    ],
    "source": _attribute(KafkaTopic | PostgresTable | None),
    "deps": Sequence[Key | Dependency],
    "kinds": Sequence[str],
    "automation": Automation,
    "retry_policy": Retries,
    "worker_timeout": timedelta,
}
"""Attributes whose YAML form differs from the field's type."""
TableAttributes = attributes_of(Table)


def filled_in(context: dg.ResolutionContext, value: Any) -> Any:
    """Fills in templates such as ``{{ env.HOST }}`` in all texts within a value."""
    if type(value) is str:  # not a member of an enum, which is a str as well
        return context.resolve_value(value)
    if isinstance(value, BaseModel):
        return value.model_copy(update={n: filled_in(context, getattr(value, n)) for n in value.model_fields_set})
    if isinstance(value, Mapping):
        return {name: filled_in(context, one) for name, one in value.items()}
    return [filled_in(context, one) for one in value] if type(value) in (list, tuple) else value


class DomainAttributes(dg.Model):
    """The attributes of a component."""

    domain: str = Field(description=field_docs(Domain)["name"], examples=["shop"])
    tables: list[TableAttributes] = Field(  # type: ignore[valid-type]  # made at run time
        description="The tables; their identifiers begin with the domain.",
        examples=[first_table.attributes("shop", "my_project.defs.shop.steps")["tables"]],
    )


NAME = re.compile(r"[a-z][a-z0-9_]*")
"""The name of a new component's folder, which becomes that of a domain, a namespace and a Python package, too."""


class TablesScaffolder(dg.Scaffolder):
    """Writes a component of one table: defs.yaml and its steps."""

    def scaffold(self, request: dg.ScaffoldRequest) -> None:
        """Writes both files. Raises ValueError if asked for Python, or if the folder's name can't be a domain's."""
        if request.scaffold_format != "yaml":
            raise ValueError("LakehouseTables is declared in YAML; in Python, call lakehouse_assets.code_location()")
        if not NAME.fullmatch(request.target_path.name):
            raise ValueError(f"{request.target_path.name} can't be a domain's name: lower case, digits and _ only")
        folder, root = request.target_path, request.project_root or request.target_path.parent
        # In a project with the folder src, modules begin below it.
        sources = root / "src" if folder.is_relative_to(root / "src") else root
        module = ".".join(folder.relative_to(sources).parts)
        scaffold_component(request, first_table.attributes(folder.name, f"{module}.steps"))
        (folder / "steps.py").write_text(first_table.STEPS)


@dg.scaffold_with(TablesScaffolder)
class LakehouseTables(dg.Component, dg.Resolvable, dg.Model):
    """Declares a domain's Iceberg tables, each an asset that PySpark workers fill.

    All components of this kind in a project form one code location; the first one adds what they share.

    Examples:
        >>> from lakehouse_assets import LakehouseTables
        >>> yaml = '''
        ... domain: shop
        ... tables:
        ...   - identifier: shop.orders
        ...     columns: [{name: id, type: int, required: true}]
        ...     step: shop.steps:orders
        ... '''
        >>> LakehouseTables.resolve_from_yaml(yaml).declared_domain.tables[0].identifier
        'shop.orders'
    """

    domain: str
    tables: Annotated[Sequence[Any], dg.Resolver(filled_in)]

    @classmethod
    def model(cls) -> type[BaseModel]:
        """Returns our own model: Dagster's accepts any text, and names no unknown attribute."""
        return DomainAttributes

    @cached_property
    def declared_domain(self) -> Domain:
        """Cached, as each component of a project looks at the domains of all. Raises DeclarationError."""
        return Domain(self.domain, tables=[*map(_built, self.tables)])

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Returns the domain's definitions; the project's first component adds the shared ones.

        Raises as code_location(); Dagster checks whether deps exist.
        """
        together = context.component_tree.get_all_components(of_type=LakehouseTables)
        domains = with_step_inputs([component.declared_domain for component in together])
        settings = location_settings(domains, EXTENSIONS, has_others=True)
        (own,) = (domain.definitions(settings, EXTENSIONS) for domain in domains if domain.name == self.domain)
        is_first = self.domain == domains[0].name
        return dg.Definitions.merge(own, shared_definitions(domains, settings)) if is_first else own

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        """Returns what `dg list components` and the UI show."""
        return dg.ComponentTypeSpec(description=(cls.__doc__ or "").partition("\n")[0], tags=["iceberg", "pyspark"])
