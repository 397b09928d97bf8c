"""A real broker of Kafka on free loopback ports, for tests and for `make ui EVENTS=1`; gone afterwards.
Its jars are fetched once, as Spark's are. Nothing of Dagster or Iceberg here."""

from __future__ import annotations

import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lakehouse_assets.environment.machine import java_home
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.environment.spark_setup import resolve, spark_home
from tests.support.servers import free_ports

VERSION = "4.1.1"
PACKAGES = (f"org.apache.kafka:kafka_2.13:{VERSION}", "org.slf4j:slf4j-nop:1.7.36")
START_SECONDS = 90
CLUSTER = "4L6g3nShT-eMCtK--X86sw"
SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={folder}/logs
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
log.retention.check.interval.ms=500
"""


def jars(settings: Settings) -> Path:
    """The folder with the broker's jars in the machine's cache; they are fetched where it has none."""
    folder = settings.cache / "jars" / f"kafka-{VERSION}"
    if not folder.is_dir():
        resolve(settings, PACKAGES, folder)
    return folder


@dataclass
class Kafka:
    """A broker in a folder; what is in it stays there while the broker is down."""

    folder: Path
    jars: Path
    port: int
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        with (self.folder / "kafka.log").open("ab") as output:
            self.process = subprocess.Popen(
                self._java("kafka.Kafka", self.folder / "server.properties"), stdout=output, stderr=output
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Kafka did not start:\n{(self.folder / 'kafka.log').read_text()[-3000:]}")
            time.sleep(0.1)

    def stop(self, with_signal: signal.Signals = signal.SIGKILL) -> None:
        """End the broker's process, by default as if the machine had lost its power."""
        assert self.process is not None
        self.process.send_signal(with_signal)
        self.process.wait(30)

    def configure(self, controller: int) -> None:
        given = SETTINGS.format(port=self.port, controller=controller, folder=self.folder)
        (self.folder / "server.properties").write_text(given)
        if (self.folder / "logs").is_dir():
            return
        command = ["kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", self.folder / "server.properties"]
        done = subprocess.run(self._java(*command), capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"Kafka's folder could not be made:\n{done.stdout}{done.stderr}")

    def _java(self, *arguments: object) -> list[str]:
        (scala,) = (spark_home() / "jars").glob("scala-library-*.jar")  # what Spark has, its resolver leaves out
        options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{self.jars}/*:{scala}"]
        return [str(java_home() / "bin" / "java"), *options, *map(str, arguments)]

    def _answers(self) -> bool:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        with socket.socket() as asked:
            if asked.connect_ex(("127.0.0.1", self.port)):
                return False
        try:
            AdminClient({"bootstrap.servers": self.bootstrap, "log_level": "0"}).list_topics(timeout=5)
        except KafkaException:
            return False
        return True


@contextmanager
def kafka(settings: Settings, folder: Path | None = None) -> Iterator[Kafka]:
    """Starts a broker. folder: where it keeps its topics, for good; None: they are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="kafka-", ignore_cleanup_errors=True) as scratch:
        kept = folder or Path(scratch)
        kept.mkdir(parents=True, exist_ok=True)
        port, controller = free_ports(2)
        broker = Kafka(kept, jars(settings), port)
        broker.configure(controller)
        broker.start()
        try:
            yield broker
        finally:
            if broker.process is not None and broker.process.poll() is None:
                broker.stop()
