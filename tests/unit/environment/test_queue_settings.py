"""The settings of the queue: what is read, and what is refused with which words."""

from __future__ import annotations

import pytest

from lakehouse_assets.environment.env_reader import SettingsError
from lakehouse_assets.environment.settings import QueueSettings, read_queue, read_settings

URL = "https://sqs.eu-central-1.amazonaws.com/123456789012/lakehouse"
BOTH = {"LAKEHOUSE_QUEUE": URL, "LAKEHOUSE_QUEUE_DEAD_LETTERS": f"{URL}-dead"}


def test_without_a_queue_there_is_none() -> None:
    assert read_queue({}) == (None, [])


def test_a_queue_has_a_name_and_a_limit_of_runs() -> None:
    queue, problems = read_queue(BOTH)
    assert queue == QueueSettings(URL, f"{URL}-dead", 4)
    assert not problems
    assert queue.name == "lakehouse"
    assert not queue.is_on_loopback
    limited, _ = read_queue({**BOTH, "LAKEHOUSE_QUEUE_RUNS": "2"})
    assert limited
    assert limited.runs == 2


def test_a_queue_on_this_machine_is_known_as_such() -> None:
    assert QueueSettings("http://127.0.0.1:9324/1/q", "http://127.0.0.1:9324/1/d").is_on_loopback


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"LAKEHOUSE_QUEUE_DEAD_LETTERS": ""}, "LAKEHOUSE_QUEUE_DEAD_LETTERS is not set"),
        ({"LAKEHOUSE_QUEUE_DEAD_LETTERS": URL}, "is the queue itself"),
        ({"LAKEHOUSE_QUEUE": "lakehouse"}, "is not of the form https://"),
        ({"LAKEHOUSE_QUEUE": f"{URL}.fifo"}, "is not of the form https://"),
        ({"LAKEHOUSE_QUEUE_RUNS": "0"}, "is not a whole number above 0"),
        ({"LAKEHOUSE_QUEUE": ""}, "LAKEHOUSE_QUEUE is not, so no queue is read"),
        ({"LAKEHOUSE_STAGING": "gs://bucket/staging"}, "LAKEHOUSE_STAGING=gs://bucket/staging is neither"),
    ],
)
def test_what_cant_work_is_refused(change: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        read_settings({**BOTH, **change})
