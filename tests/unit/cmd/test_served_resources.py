"""The features of a component whose server does not serve all of their resources."""

from __future__ import annotations

import pytest

from dray.api.features import FeatureGates
from dray.api.gate_table import Release
from dray.cmd.served_features import served_features

V1, V1BETA2 = ("resource.k8s.io", "v1", "resourceclaims"), ("resource.k8s.io", "v1beta2", "resourceclaims")
RULES, OLD_RULES = ("resource.k8s.io", "v1", "devicetaintrules"), ("resource.k8s.io", "v1beta2", "devicetaintrules")
ALPHA_RULES = "resource.k8s.io", "v1alpha3", "devicetaintrules"


@pytest.mark.behaviour("N-03")
@pytest.mark.parametrize(
    ("served", "enabled"), [({RULES}, True), ({RULES, OLD_RULES}, True), ({OLD_RULES}, True), ({ALPHA_RULES}, False)]
)
def test_taint_rules_are_followed_if_they_are_served_in_v1_or_v1beta2(
    served: set[tuple[str, str, str]], *, enabled: bool
) -> None:
    gates = served_features({V1, *served}, FeatureGates())
    assert gates.enabled("DRADeviceTaintRules") is enabled
    assert not gates.enabled("DRAControlPlaneController")


@pytest.mark.behaviour("EV-12")
@pytest.mark.parametrize(("served", "enabled"), [({V1}, True), ({V1BETA2}, True), (set[tuple[str, str, str]](), False)])
def test_without_claims_nothing_is_on_that_needs_them(served: set[tuple[str, str, str]], *, enabled: bool) -> None:
    gates = served_features(served, FeatureGates.parse("GenericWorkload=true,DRAWorkloadResourceClaims=true"))
    for name in ("DynamicResourceAllocation", "DRAExtendedResource", "DRAPrioritizedList"):
        assert gates.enabled(name) is enabled
    for name in ("GenericWorkload", "DRAWorkloadResourceClaims"):
        assert not gates.enabled(name)
    gates.check_dependencies()


def test_the_emulated_release_stays() -> None:
    gates = FeatureGates.parse("DynamicResourceAllocation=true", Release(1, 33))
    assert served_features(set(), gates).release == (1, 33)
