"""What is said of a topic's records that can't be read. What is read is integration/test_kafka_source.py's."""

from __future__ import annotations

from unittest import mock

import pyarrow as pa
import pytest

from lakehouse_assets.errors import BadValue
from lakehouse_assets.extensions.sources import kafka
from lakehouse_assets.extensions.sources.kafka import KafkaTopic, bad_records


def test_all_records_that_can_not_be_read_are_named_to_be_left_out_at_once() -> None:
    text = bad_records({"0:1@a": "it is not a JSON object", "0:4@a": "another"})
    assert "0:1@a can't be read: it is not a JSON object. 1 more after it can't be read either." in text
    assert "skip=['0:1@a', '0:4@a']" in text


def test_a_message_names_no_more_than_a_person_would_copy() -> None:
    text = bad_records({f"0:{n}@a": "no object" for n in range(10_000)})
    assert "9,999 more after it can" in text
    assert text.count("@a'") == kafka.NAMED


def test_a_field_in_another_case_is_the_declarations_fault_and_no_records() -> None:
    """Advice to skip such records would lose good rows."""
    schema = pa.schema([("n", pa.int64())])

    def refused(*values: bytes) -> str:
        messages = [mock.Mock(**{"value.return_value": v, "offset.return_value": n}) for n, v in enumerate(values)]
        for message in messages:
            message.partition.return_value = 0
        with mock.patch.object(KafkaTopic, "_identity", return_value="a"), pytest.raises(BadValue) as error:
            KafkaTopic("events")._parsed(messages, schema)
        return str(error.value)

    told = refused(b'{"n": 1}', b'{"N": 2}')
    assert "declare ignore_case=True" in told
    assert "skip" not in told
    both = refused(b"no object", b'{"N": 2}')
    assert "0:0@a" in both
    assert "0:1@a" not in both
