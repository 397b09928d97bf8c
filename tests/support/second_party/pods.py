"""A launcher as another package brings it: workers are processes with a name, in a namespace, of low priority.
Its entry point is in pods-1.0.dist-info; nothing of the project names it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import dagster as dg

from lakehouse_assets.environment.computes import ComputeSettings
from lakehouse_assets.environment.env_reader import EnvReader
from lakehouse_assets.environment.launchers.base import Attempt, Ended, Handle, Launcher
from lakehouse_assets.environment.launchers.local import PolledFileReader
from lakehouse_assets.environment.settings import Settings


@dataclass(frozen=True)
class Pods(ComputeSettings):
    remote = False
    namespace: str
    niceness: int

    @classmethod
    def read(cls, reader: EnvReader) -> Pods:
        namespace = reader.text("LAKEHOUSE_PODS_NAMESPACE", "[a-z-]+", "data-team")
        return cls(namespace, reader.number("LAKEHOUSE_PODS_NICENESS", int) or 10)

    def launcher(self, settings: Settings, worker: str) -> PodLauncher:
        return PodLauncher(self, settings.home / "pods" / self.namespace, worker)


class PodLauncher(Launcher):
    def __init__(self, pods: Pods, folder: Path, worker: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.command = folder, ("nice", f"-n{pods.niceness}", sys.executable, "-m", worker)

    def pipes(self, attempt: Attempt) -> tuple[dg.PipesContextInjector, PolledFileReader]:
        place = self.folder / attempt.key
        return dg.PipesFileContextInjector(f"{place}.context"), PolledFileReader(Path(f"{place}.messages"))

    def submit(self, attempt: Attempt, environment: Mapping[str, str]) -> Handle:
        (self.folder / f"{attempt.key}.pod").write_text(attempt.title)
        return Handle(attempt.key, subprocess.Popen(self.command, env={**os.environ, **environment}))

    def poll(self, handles: Sequence[Handle]) -> dict[str, Ended]:
        return {h.id: Ended(f"exited with {h.state.poll()}") for h in handles if h.state.poll() is not None}

    def cancel(self, handles: Sequence[Handle]) -> None:
        for handle in handles:
            handle.state.terminate()

    def link(self, handle: Handle) -> str:
        return f"pod {handle.id}"
