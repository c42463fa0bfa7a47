"""Device metadata in containers: the reader for programs in containers, and the writer of the SDK.

A container reads its devices with `read_claim`, `read_template_claim` or `read_all`, or on the command line with
`python -m dray.driver.metadata`.
"""

from dray.api.device_metadata import (
    ClaimReference,
    DeviceMetadata,
    DeviceMetadataError,
    MetadataDevice,
    MetadataRequest,
)
from dray.driver.metadata.reader import read_all, read_claim, read_file, read_template_claim

__all__ = [
    "ClaimReference",
    "DeviceMetadata",
    "DeviceMetadataError",
    "MetadataDevice",
    "MetadataRequest",
    "read_all",
    "read_claim",
    "read_file",
    "read_template_claim",
]
