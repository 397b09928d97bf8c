"""Runs assets side by side, in processes that run one at a time.

Dagster captures a run's output by redirecting the file descriptors of the whole process, so threads can't do it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from graphlib import TopologicalSorter
from importlib import import_module
from multiprocessing.connection import Connection, wait

import dagster as dg

from lakehouse_assets.cli.errors import expected_message
from lakehouse_assets.cli.pipeline import Pipeline, Selection, failure_reason, shown_charts, was_interrupted
from lakehouse_assets.cli.terminal import Line, Lines
from lakehouse_assets.environment.machine import signal_at_parents_end
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.run.progress import Progress, listening

REFRESH_SECONDS = 0.1


@dataclass(frozen=True)
class Outcome:
    """The end of a run."""

    run_id: str | None
    """The Dagster run's; None if Dagster could not record its end."""
    failure: str | None
    """The error; None if the run succeeded."""
    seconds: float
    interrupted: bool = False
    """Whether a signal ended the run."""
    charts: tuple[str, ...] = ()
    """Paths, from shown_charts()."""


@dataclass(frozen=True)
class _Running:
    selection: Selection
    line: Line
    process: _Process


def run_all(
    pipeline: Pipeline, upstream: Mapping[Selection, set[Selection]], at_once: int, lines: Lines
) -> dict[Selection, Outcome]:
    """Runs each selection once those upstream of it have succeeded. Returns the outcomes of those that ran.

    upstream: all selections in the order of their numbers, each with those that must succeed first. at_once: the most
    processes. Raises KeyboardInterrupt if this process or a run was interrupted, once all runs have ended.
    """
    import_module("lakehouse_assets.run.table_run")  # slow, and each process would import it
    sorter = TopologicalSorter(upstream)
    sorter.prepare()
    numbers = {selection: number for number, selection in enumerate(upstream, start=1)}
    startable: set[Selection] = set()
    idle: list[_Process] = []
    running: dict[Connection, _Running] = {}
    outcomes: dict[Selection, Outcome] = {}
    with ExitStack() as ends, _ended_together(running):
        while True:
            # The sorter gives a selection only once: those beyond at_once wait here.
            startable.update(sorter.get_ready())
            for selection in sorted(startable, key=numbers.__getitem__)[: at_once - len(running)]:
                startable.remove(selection)
                line = lines.add(f"[{numbers[selection]}/{len(numbers)}] {selection.name}", selection.count)
                process = idle.pop() if idle else ends.enter_context(closing(_Process(pipeline)))
                process.connection.send(selection)
                running[process.connection] = _Running(selection, line, process)
            if not running:
                return outcomes
            for one, outcome in _ended(running):
                one.line.end("failed" if outcome.failure else "done")
                outcomes[one.selection] = outcome
                if outcome.interrupted:
                    raise KeyboardInterrupt
                if one.process.is_alive():  # a run that failed leaves its process as good as new
                    idle.append(one.process)
                if not outcome.failure:
                    sorter.done(one.selection)  # else what depends on it is never ready
            lines.refresh()


@contextmanager
def _ended_together(running: dict[Connection, _Running]) -> Iterator[None]:
    """After a KeyboardInterrupt, interrupts all runs and waits for their ends."""
    try:
        yield
    except KeyboardInterrupt:
        for one in running.values():
            one.process.interrupt()
        while running:
            list(_ended(running))
        raise


def _ended(running: dict[Connection, _Running]) -> Iterator[tuple[_Running, Outcome]]:
    """Waits for news. Takes the runs that have ended from ``running``, and yields them."""
    for connection in wait(list(running), REFRESH_SECONDS):
        assert isinstance(connection, Connection)
        one = running[connection]
        news = one.process.news()
        if isinstance(news, Progress):
            one.line.update(news)
        else:
            del running[connection]
            yield one, news


class _Process:
    """A process that runs selections. It is forked, as loading the code location takes seconds."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        arguments = (pipeline, theirs, self.connection, os.getpid())
        self._process = multiprocessing.get_context("fork").Process(target=_serve, args=arguments)
        self._process.start()
        theirs.close()  # so that the connection ends with the process

    def news(self) -> Progress | Outcome:
        """Waits for the process's next message, or its death."""
        try:
            news: Progress | Outcome = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self._process.join()
            return Outcome(None, f"its process ended with exit code {self._process.exitcode}", 0.0)
        return news

    def is_alive(self) -> bool:
        """Whether it can run another selection."""
        return self._process.is_alive()

    def close(self) -> None:
        """Has it end, once its run has."""
        self.connection.close()

    def interrupt(self) -> None:
        """Interrupts its run, as Ctrl-C does."""
        with suppress(ProcessLookupError):
            os.kill(self._process.pid or 0, signal.SIGINT)


def _serve(pipeline: Pipeline, connection: Connection, parents: Connection, parent: int) -> None:
    """Runs the selections that come over the connection, and sends their progress and outcomes back.

    parents: the parent's end of the connection. parent: its process id.
    """
    parents.close()  # else the connection would not end with the parent
    os.setpgid(0, 0)  # a terminal's Ctrl-C reaches the parent, which passes it on once
    signal_at_parents_end(parent, signal.SIGTERM)
    with dg.DagsterInstance.get() as instance, listening(connection.send), suppress(EOFError, BrokenPipeError):
        while True:
            connection.send(_run(pipeline, instance, connection.recv()))


def _run(pipeline: Pipeline, instance: dg.DagsterInstance, selection: Selection) -> Outcome:
    started = time.time()
    try:
        result = pipeline.execute(instance, selection)
    except Exception as error:  # Dagster could not record the run: a full disk, a database that is away
        traceback.print_exc()  # to the log
        return Outcome(None, expected_message(error, read_settings()) or repr(error), time.time() - started)
    failure = None if result.success else failure_reason(result)
    charts = tuple(shown_charts(result))
    return Outcome(result.run_id, failure, time.time() - started, was_interrupted(result), charts)
