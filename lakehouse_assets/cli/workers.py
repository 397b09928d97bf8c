"""`lakehouse workers`: lists the workers that wait for the next chunk, and stops them."""

from __future__ import annotations

import os
import time

import click

from lakehouse_assets.cli.home import used_by_command
from lakehouse_assets.cli.project import enter_project
from lakehouse_assets.environment.env_reader import public
from lakehouse_assets.environment.machine import java_home
from lakehouse_assets.environment.settings import Settings, read_settings
from lakehouse_assets.environment.spark_setup import spark_conf
from lakehouse_assets.extensions.fork_server.folders import WORKERS, alive
from lakehouse_assets.extensions.fork_server.key import Key, key_of


@click.group(invoke_without_command=True)
@click.pass_context
def workers(context: click.Context) -> int | None:
    """List the local workers that wait for the next chunk."""
    if context.invoked_subcommand:
        return None
    from lakehouse_assets.cli.terminal import duration, table
    from lakehouse_assets.maintenance.health.findings import size_text

    settings = _settings()
    running, now = alive(settings.home / WORKERS), time.time()
    if not running:
        print("no worker waits or works")
        return 0
    here = _key(settings)
    rows = [
        (
            str(one.about.pid),
            duration(now - one.about.began),
            str(one.about.chunks),
            size_text(one.resident_bytes()),
            f"idle for {duration(now - one.about.idle_since)}" if one.about.idle_since else "works",
            # PYTHONPATH depends on the table, so a difference says nothing here.
            ", ".join(name for name in one.key.differences(here) if name != "PYTHONPATH") or "yes",
        )
        for one in running
    ]
    print(table(("process", "age", "chunks", "memory", "state", "next run uses it, or differs in"), rows))
    return 0


@workers.command()
def stop() -> int:
    """Stop the workers that are idle."""
    running = alive(_settings().home / WORKERS)
    stopped = sum(one.end() for one in running)
    busy = len(running) - stopped
    plural = "" if stopped == 1 else "s"
    print(f"stopped {stopped} idle worker{plural}" + (f"; {busy} at work" if busy else ""))
    return 0


def _settings() -> Settings:
    enter_project()
    return used_by_command(read_settings())


def _key(settings: Settings) -> Key:
    """Returns the key by which the next run chooses workers, if its table has no Spark settings."""
    return key_of(os.environ, (), public(spark_conf(settings, {})), java_home())
