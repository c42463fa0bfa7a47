"""Prints the devices of this container as JSON, one claim per line."""

from __future__ import annotations

import sys

import msgspec

from dray.api.device_metadata import DeviceMetadataError
from dray.driver.metadata.reader import read_all


def main() -> int:
    """Return the exit code: 1 if the metadata cannot be read."""
    try:
        for claim in read_all():
            sys.stdout.write(msgspec.json.encode(claim).decode() + "\n")
    except DeviceMetadataError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
