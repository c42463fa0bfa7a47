"""What is served in which release, and what `--runtime-config` switches."""

from __future__ import annotations

import pytest

from dray.api.features import FeatureGates
from dray.api.gate_table import CURRENT, Release
from dray.apiserver.registry import builtin
from dray.apiserver.registry.served_versions import RuntimeConfig, RuntimeConfigError, is_served, parse_runtime_config

KNOWN = tuple(builtin.endpoints())


def served(release: Release = CURRENT, runtime_config: str = "", gates: str = "") -> set[str]:
    config = parse_runtime_config([item for item in runtime_config.split(",") if item], KNOWN, release)
    features = FeatureGates.parse(gates, release)
    found = [item for item in KNOWN if is_served(item, features, config)]
    return {f"{item.api_version}/{item.definition.resource}" for item in found}


@pytest.mark.behaviour("EV-10")
@pytest.mark.parametrize(
    ("minor", "versions", "rules"),
    [
        (33, {"v1beta1", "v1beta2", "v1alpha3"}, {"v1alpha3"}),
        (34, {"v1", "v1beta1", "v1beta2", "v1alpha3"}, {"v1alpha3"}),
        (35, {"v1", "v1beta1", "v1beta2", "v1alpha3"}, {"v1alpha3"}),
        (36, {"v1", "v1beta1", "v1beta2", "v1alpha3"}, {"v1alpha3", "v1beta2"}),
        (37, {"v1", "v1beta1", "v1beta2", "v1alpha3"}, {"v1alpha3", "v1beta2", "v1"}),
    ],
)
def test_versions_that_a_release_did_not_have_are_not_served(minor: int, versions: set[str], rules: set[str]) -> None:
    found = [item.removeprefix("resource.k8s.io/") for item in served(Release(1, minor)) if "resource.k8s.io" in item]
    assert {item.partition("/")[0] for item in found} == versions
    assert {item.partition("/")[0] for item in found if item.endswith("/devicetaintrules")} == rules
    assert ("storage.k8s.io/v1/volumeattributesclasses" in served(Release(1, minor))) is (minor >= 34)


@pytest.mark.behaviour("EV-10")
def test_a_gate_serves_nothing_that_the_release_did_not_have() -> None:
    on = "GenericWorkload=true"
    assert "scheduling.k8s.io/v1beta1/podgroups" in served(gates=on)
    assert "scheduling.k8s.io/v1beta1/podgroups" not in served(Release(1, 36), gates=on)


@pytest.mark.behaviour("EV-13")
def test_a_version_is_deprecated_from_its_release_on() -> None:
    def warned(minor: int) -> set[str]:
        endpoints = builtin.endpoints(Release(1, minor))
        return {item.version for item in endpoints if item.deprecation and item.definition.group == "resource.k8s.io"}

    assert (warned(34), warned(35), warned(36)) == (set(), {"v1beta1"}, {"v1beta1", "v1beta2", "v1alpha3"})


@pytest.mark.behaviour("EV-30")
@pytest.mark.parametrize(
    ("text", "off", "on"),
    [
        ("resource.k8s.io/v1beta1=false", "resource.k8s.io/v1beta1/deviceclasses", "resource.k8s.io/v1/deviceclasses"),
        ("api/beta=false", "resource.k8s.io/v1beta2/deviceclasses", "resource.k8s.io/v1/deviceclasses"),
        ("api/alpha=false", "cdi.k8s.io/v1alpha1/resourceclaims", "resource.k8s.io/v1beta1/deviceclasses"),
        (
            "api/all=false,resource.k8s.io/v1=true",
            "resource.k8s.io/v1beta2/deviceclasses",
            "resource.k8s.io/v1/deviceclasses",
        ),
        # In the order of the patterns, not of the flag.
        ("api/ga=true,api/all=false", "resource.k8s.io/v1beta1/deviceclasses", "apps/v1/deployments"),
        (
            "resource.k8s.io/v1beta1=0,resource.k8s.io/v1beta1/deviceclasses",
            "",
            "resource.k8s.io/v1beta1/deviceclasses",
        ),
        (
            "resource.k8s.io/v1/deviceclasses=false",
            "resource.k8s.io/v1/deviceclasses",
            "resource.k8s.io/v1/resourceclaims",
        ),
        ("api/all=false,v1", "apps/v1/deployments", "v1/pods"),
    ],
)
def test_versions_and_resources_are_switched(text: str, off: str, on: str) -> None:
    found = served(runtime_config=text)
    assert off not in found
    assert on in found
    # Without them nothing works.
    assert {"v1/namespaces", "rbac.authorization.k8s.io/v1/roles", "coordination.k8s.io/v1/leases"} <= found


@pytest.mark.behaviour("EV-31")
@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("api/all=false", "invalid runtime-config with only api/all=false"),
        ("api/all=maybe", 'invalid value of api/all: maybe, err: strconv.ParseBool: parsing "maybe": invalid syntax'),
        ("nope.k8s.io/v1=true", "unknown api groups nope.k8s.io/v1"),
        ("resource.k8s.io/v9=true", "group version resource.k8s.io/v9 that has not been registered"),
        ("resource.k8s.io/v1/pods", "invalid key resource.k8s.io/v1/pods: resource.k8s.io/v1 has no resource pods"),
        ("resource", "invalid key resource: must be GROUP/VERSION, GROUP/VERSION/RESOURCE or api/all"),
        ("v1=false", "v1 cannot be switched off: the API server itself needs it"),
        (
            "resource.k8s.io/v1/devicetaintrules",
            "cannot enable resource.k8s.io/v1/devicetaintrules in runtime-config because it is introduced at 1.37 "
            "after the current version 1.36",
        ),
    ],
)
def test_bad_values_are_refused(text: str, error: str) -> None:
    with pytest.raises(RuntimeConfigError) as refused:
        parse_runtime_config([text], KNOWN, Release(1, 36))
    assert str(refused.value) == error


def test_nothing_is_switched_by_default() -> None:
    assert parse_runtime_config([], KNOWN, CURRENT) == RuntimeConfig()
