"""What a worker leaves when its work is done: the receipt, written where the run will look for it.
What a receipt says is protocol/receipts.py's."""

from __future__ import annotations

from pyiceberg.io import FileIO

from lakehouse_assets.protocol.receipts import Receipt


def write_receipt(io: FileIO, location: str, receipt: Receipt) -> None:
    """Write a receipt in one piece, over one that an earlier worker left there."""
    with io.new_output(location).create(overwrite=True) as stream:
        stream.write(receipt.to_json().encode())
