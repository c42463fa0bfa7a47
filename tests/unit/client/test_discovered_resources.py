"""Discovery: each resource has one preferred version, also where its group's own preferred version does not have it."""

from __future__ import annotations

import pytest

from dray.client.interface import ServedResource
from dray.client.responses import with_preferred_versions


def served(version: str, plural: str, *, preferred: bool) -> ServedResource:
    return ServedResource("scheduling.k8s.io", version, plural, plural, True, frozenset(), preferred)


@pytest.mark.behaviour("SC-19")
def test_every_resource_has_one_preferred_version() -> None:
    found = with_preferred_versions(
        [
            served("v1", "priorityclasses", preferred=True),
            served("v1beta1", "priorityclasses", preferred=False),
            served("v1beta1", "podgroups", preferred=False),
            served("v1alpha3", "podgroups", preferred=False),
        ]
    )
    assert [(item.version, item.plural) for item in found if item.preferred] == [
        ("v1", "priorityclasses"),
        ("v1beta1", "podgroups"),
    ]
