"""Which representation an Accept header gets."""

from __future__ import annotations

import pytest

from dray.api.errors import APIError
from dray.apiserver.negotiation import Media, Representation, negotiate

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
CASES = {
    "nothing": ("", Representation(Media.JSON)),
    "anything": ("*/*", Representation(Media.JSON)),
    "yaml": ("application/yaml", Representation(Media.YAML)),
    "protobuf alone": ("application/vnd.kubernetes.protobuf", Representation(Media.PROTOBUF)),
    "protobuf first": ("application/vnd.kubernetes.protobuf,application/json", Representation(Media.PROTOBUF)),
    "JSON first": ("application/json,application/vnd.kubernetes.protobuf", Representation(Media.JSON)),
    "no table in protobuf": (
        f"application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io,{TABLE}",
        Representation(Media.JSON, "Table", "meta.k8s.io/v1"),
    ),
    "unknown, then known": ("application/foo, application/json", Representation(Media.JSON)),
    "quality decides": ("application/yaml;q=0.5,application/json", Representation(Media.JSON)),
    "table": (f"{TABLE},application/json", Representation(Media.JSON, "Table", "meta.k8s.io/v1")),
    "table of a version there is not": (
        "application/json;as=Table;v=v9;g=meta.k8s.io,application/json",
        Representation(Media.JSON),
    ),
    "metadata alone": (
        "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
        Representation(Media.JSON, "PartialObjectMetadata", "meta.k8s.io/v1"),
    ),
}


@pytest.mark.parametrize(("accept", "expected"), CASES.values(), ids=CASES)
def test_the_first_acceptable_representation_is_taken(accept: str, expected: Representation) -> None:
    assert negotiate(accept) == expected


@pytest.mark.parametrize(
    ("accept", "protobuf", "text"),
    [
        ("text/html", True, "Available representations: application/json"),
        ("application/json;as=Table;v=v9;g=meta.k8s.io", True, "only the following media types are accepted"),
        ("application/cbor", True, "Available representations: application/json"),
        ("application/vnd.kubernetes.protobuf", False, "only the following media types are accepted"),
    ],
)
def test_what_cannot_be_served_is_not_acceptable(accept: str, protobuf: bool, text: str) -> None:
    with pytest.raises(APIError) as caught:
        negotiate(accept, protobuf=protobuf)
    assert caught.value.code == 406
    assert text in caught.value.message
