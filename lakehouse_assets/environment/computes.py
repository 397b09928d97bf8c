"""The *computes*: the places where workers can run. Packages add more by entry points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, Self

from lakehouse_assets.environment.env_reader import EnvReader, redacted
from lakehouse_assets.environment.sizes import Size

if TYPE_CHECKING:
    from lakehouse_assets.environment.launchers.base import Launcher

GROUP = "lakehouse.launchers"
"""Entry points: LAKEHOUSE_COMPUTE's value → a ComputeSettings."""


def made(launcher: str, *arguments: Any) -> Launcher:
    """Makes a launcher by its name, ``module:class``: the module is slow to import, and itself imports this one."""
    found: Launcher = resolve_name(launcher)(*arguments)
    return found


@dataclass(frozen=True)
class ComputeSettings:
    """The settings and traits of a compute.

    Workers look up the class by the compute's name: they need its package too.
    """

    remote: ClassVar[bool] = True
    """Whether each worker runs alone on another machine, without local folders."""
    brings_spark: ClassVar[bool] = False
    """Whether the service starts Spark's JVM, with its jars, memory and master."""
    shares_session: ClassVar[bool] = False
    """Whether workers share one Spark session, one after the other."""

    @classmethod
    def read(cls, reader: EnvReader) -> Self:
        """Reads the settings; adds problems to the reader's."""
        return cls()

    def launcher(self, settings: Any, worker: str) -> Launcher:
        """Makes the launcher. worker: the package for ``python -m``."""
        raise NotImplementedError

    def problems(self) -> list[str]:
        """Returns problems of files that the settings name, or of AWS's variables."""
        return []

    def size_problem(self, size: Size, conf: Mapping[str, str]) -> str | None:
        """Returns why workers with these Spark settings can't have this size; None if they can."""
        return None


class Inline(ComputeSettings):
    """The run's own process."""

    remote = False
    shares_session = True

    def launcher(self, settings: Any, worker: str) -> Launcher:
        """Makes the launcher; imports PySpark."""
        perform = import_module(f"{worker}.perform").perform
        name = "lakehouse_assets.environment.launchers.inline:InlineLauncher"
        return made(name, lambda work, session: perform(work, session, settings=lambda: settings))


BUILT_IN = {
    "inline": "lakehouse_assets.environment.computes:Inline",
    "local": "lakehouse_assets.extensions.fork_server.computes:Local",
    "ecs": "lakehouse_assets.extensions.aws.computes:Ecs",
    "emr": "lakehouse_assets.extensions.aws.computes:Emr",
    "emr_serverless": "lakehouse_assets.extensions.aws.computes:EmrServerless",
    "emr_eks": "lakehouse_assets.extensions.aws.computes:EmrEks",
}
"""This library's own computes. Not by entry points: workers may run the library from a zip, which has none."""


@cache
def added() -> dict[str, type[ComputeSettings]]:
    """Loads the computes of installed packages."""
    return {entry.name: entry.load() for entry in entry_points(group=GROUP)}


def find_compute(name: str, option: str = "compute") -> type[ComputeSettings]:
    """Finds a compute by name. Raises ValueError that names the known ones. option: where the name is set."""
    found: type[ComputeSettings] | None = resolve_name(BUILT_IN[name]) if name in BUILT_IN else added().get(name)
    if found is None:
        raise ValueError(f"{option}={redacted(name)!r} is unknown; expected one of {', '.join([*BUILT_IN, *added()])}")
    return found


def compute_variables() -> set[str]:
    """Returns the names of all variables that computes read."""
    # With no variables, each read() only notes problems and the names that it asks for.
    reader = EnvReader({})
    for name in (*BUILT_IN, *added()):
        find_compute(name).read(reader)
    return reader.asked
