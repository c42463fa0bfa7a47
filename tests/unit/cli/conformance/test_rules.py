"""The rules, with a case for each violation and for each valid input."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dray.cli.conformance.rules import devices, registration, responses, slices
from dray.cli.conformance.rules.devices import Allocated, ListedDevice, Reported
from dray.cli.conformance.rules.registration import Info, PluginRequest
from dray.cli.conformance.rules.responses import ClaimRef, ClaimResponse, PreparedDevice
from dray.cli.conformance.rules.slices import SliceWrite

A, B = ClaimRef("ns", "a", "1"), ClaimRef("ns", "b", "2")
INFO = Info("DRAPlugin", "x.example.com", "/x.sock", ("v1.DRAPlugin",))
ALLOCATION = {
    "devices": {
        "results": [
            {"request": "r/sub", "driver": "d", "pool": "p", "device": "x"},
            {"request": "other", "driver": "else", "pool": "p", "device": "y"},
        ]
    }
}


def info(**fields: Any) -> Info:
    base = {"type": INFO.type, "name": INFO.name, "endpoint": INFO.endpoint, "versions": INFO.versions}
    return Info(**{**base, **fields})


def item(name: str, generation: int, count: int, *names: str, node: str = "n", pool: str = "p") -> dict[str, Any]:
    spec = {
        "nodeName": node,
        "pool": {"name": pool, "generation": generation, "resourceSliceCount": count},
        "devices": [{"name": one} for one in names],
    }
    return {"metadata": {"name": name}, "spec": spec}


def prepared(*requests: str, name: str = "x") -> ClaimResponse:
    return ClaimResponse(devices=(PreparedDevice("p", name, requests),))


CASES: dict[str, tuple[Iterator[str], list[str]]] = {
    "all answered": (responses.success_problems([A, B], {"1": ClaimResponse(), "2": ClaimResponse()}), []),
    "one missing, one too many": (
        responses.entry_problems([A], {"3": ClaimResponse()}),
        ["no entry for claim ns/a (uid 1)", "unexpected entry for uid 3"],
    ),
    "an error": (
        responses.success_problems([A], {"1": ClaimResponse("no")}),
        ['claim ns/a has an error: "no"'],
    ),
    "a refusal": (responses.refusal_problems([A], {"1": ClaimResponse("no")}), []),
    "no refusal": (responses.refusal_problems([A], {"1": ClaimResponse()}), ["claim ns/a has no error"]),
    "an allocated device": (responses.device_problems("d", ALLOCATION, prepared("r")), []),
    "for all requests": (responses.device_problems("d", ALLOCATION, prepared()), []),
    "another driver's device": (
        responses.device_problems("d", ALLOCATION, prepared(name="y")),
        ["device p/y is not in the claim's allocation"],
    ),
    "a subrequest": (
        responses.device_problems("d", ALLOCATION, prepared("r/sub")),
        ['device p/x has the request name "r/sub", not one of r'],
    ),
    "the same in another order": (
        responses.difference_problems(
            ClaimResponse(devices=(PreparedDevice("p", "x"), PreparedDevice("p", "y"))),
            ClaimResponse(devices=(PreparedDevice("p", "y"), PreparedDevice("p", "x"))),
            "then",
        ),
        [],
    ),
    "another answer": (
        responses.difference_problems(prepared(), ClaimResponse(), "then"),
        ["then the response was no devices, previously p/x []"],
    ),
    "a good driver": (registration.type_problems(INFO, 0.5, 1.0), []),
    "a slow one": (registration.type_problems(INFO, 1.5, 1.0), ["it took 1.5 s"]),
    "another type": (registration.type_problems(info(type="CSI"), 0, 1), ['type is "CSI"']),
    "a good name": (registration.name_problems(INFO), []),
    "no name": (registration.name_problems(info(name="")), ["name is empty"]),
    "a long name": (
        registration.name_problems(info(name="a" * 64)),
        [f'name "{"a" * 64}" has 64 characters'],
    ),
    "one version": (registration.version_problems(INFO), []),
    "health alone": (
        registration.version_problems(info(versions=("v1alpha1.DRAResourceHealth",))),
        ["supported_versions is [v1alpha1.DRAResourceHealth]"],
    ),
    "twice": (
        registration.version_problems(info(versions=("v1.DRAPlugin", "v1.DRAPlugin"))),
        ["supported_versions has v1.DRAPlugin 2 times"],
    ),
    "an endpoint": (registration.endpoint_problems(INFO, is_socket=True), []),
    "no endpoint": (registration.endpoint_problems(info(endpoint=""), is_socket=False), []),
    "no socket": (registration.endpoint_problems(INFO, is_socket=False), ['endpoint "/x.sock" is not a socket']),
    "a long path": (
        registration.endpoint_problems(info(endpoint="/" + "a" * 107), is_socket=True),
        [f'endpoint "/{"a" * 107}" is longer than 107 bytes'],
    ),
    "unchanged": (registration.changed_problems(INFO, info()), []),
    "renamed": (registration.changed_problems(INFO, info(name="y")), ["name was 'x.example.com' and is 'y'"]),
    "a resource": (registration.resource_problems(PluginRequest("v1beta1", "x", "example.com/x")), []),
    "kubernetes' own": (
        registration.resource_problems(PluginRequest("v1beta1", "x", "kubernetes.io/x")),
        ['resource_name is "kubernetes.io/x"'],
    ),
    "a path": (
        registration.plugin_endpoint_problems(PluginRequest("v1beta1", "/x/y", "example.com/x"), ""),
        ['endpoint is "/x/y", not a file name'],
    ),
    "no options": (registration.option_problems(PluginRequest("v1beta1", "x", "r"), (True, False)), []),
    "a whole pool": (slices.count_problems([item("a", 2, 2, "x"), item("b", 2, 2, "y"), item("c", 1, 5)]), []),
    "half a pool": (
        slices.count_problems([item("a", 1, 2)]),
        ["pool p: resourceSliceCount is 2, there are 1 slices"],
    ),
    "no agreement": (
        slices.count_problems([item("a", 1, 2), item("b", 1, 3)]),
        ["pool p: slices disagree on resourceSliceCount: 2, 3"],
    ),
    "the old is left": (
        slices.outdated_problems([item("a", 2, 1), item("b", 1, 1), item("c", 1, 1, pool="q")]),
        ["b: generation 1, pool p is at 2"],
    ),
    "names in two pools": (slices.name_problems([item("a", 1, 1, "x"), item("b", 1, 1, "x", pool="q")]), []),
    "names twice": (
        slices.name_problems([item("a", 1, 2, "x"), item("b", 1, 2, "x")]),
        ["pool p: device x is listed 2 times"],
    ),
    "another node": (
        slices.node_problems([item("a", 1, 1, node="m"), item("b", 1, 1, node="")], "n"),
        ['a: nodeName is "m", the driver runs on "n"'],
    ),
    "generations that grow": (
        slices.decrease_problems([SliceWrite("p", 1, "a"), SliceWrite("q", 1, "b"), SliceWrite("p", 2, "a")]),
        [],
    ),
    "generations that do not": (
        slices.decrease_problems([SliceWrite("p", 3, "a"), SliceWrite("p", 2, "a"), SliceWrite("p", 2, "b")]),
        [
            "pool p: a was written with generation 2 after 3",
            "pool p: b was written with generation 2 after 3",
        ],
    ),
    "CDI names": (devices.unqualified_problems(["example.com/gpu=0"]), []),
    "no CDI name": (
        devices.unqualified_problems(["gpu0"]),
        ['unqualified device "gpu0", missing vendor, class or device name'],
    ),
    "a spec that is missing": (
        devices.missing_problems(["v/c=x"], {}, ["/a", "/b"]),
        ["v/c=x is in no spec in /a, /b"],
    ),
    "somebody else's spec": (devices.spec_problems({"/a": "bad", "/b": "bad"}, {"/a"}), ["/b: bad"]),
    "a conflict": (
        devices.conflict_problems({"/a": ['conflicting device "x"']}, ()),
        ['/a: conflicting device "x"'],
    ),
    "health": (devices.health_problems([Reported("p", "x", 1, 100, 30)], {("p", "x")}, 100.0), []),
    "health of the future": (
        devices.health_problems([Reported("p", "x", 1, 200, -1)], {("p", "x")}, 100.0),
        ["p/x: last_updated_time is 100 s in the future", "p/x: health_check_timeout_seconds is -1"],
    ),
    "health twice": (
        devices.health_problems([Reported("p", "x", 1, 0, 0)] * 2, {("p", "x")}, 100.0),
        ["p/x is listed 2 times"],
    ),
    "devices": (devices.listed_problems([ListedDevice("a", "Healthy", (0, 1)), ListedDevice("b", "Unhealthy")]), []),
    "bad devices": (
        devices.listed_problems([ListedDevice("", "ok", (-1,))]),
        ['id "" has 0 characters', ': health is "ok"', ": NUMA node -1"],
    ),
    "an allocation": (devices.allocated_problems([Allocated((("/a", "/b"),), (("/a", "/b", "rwm"),), ("v/c=x",))]), []),
    "a bad allocation": (
        devices.allocated_problems([Allocated((), (("/a", "/b", "rx"),), ("x",))]),
        ['/a: permissions are "rx"', 'unqualified device "x", missing vendor, class or device name'],
    ),
    "a preference": (devices.preferred_problems(["b", "a"], ["a", "b", "c"], ["a"], 2), []),
    "a bad preference": (
        devices.preferred_problems(["z", "z"], ["a", "b"], ["a"], 1),
        [
            "1 of a, b with a: 2 ids",
            "1 of a, b with a: duplicate ids",
            "1 of a, b with a: z is not available",
            "1 of a, b with a: a is missing",
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_rules(case: str) -> None:
    problems, expected = CASES[case]
    assert list(problems) == expected


@pytest.mark.behaviour("N-23")
def test_the_newest_health_service_is_checked_first() -> None:
    old, new = "v1alpha1.DRAResourceHealth", "v1.DRAResourceHealth"
    assert info(versions=("v1.DRAPlugin", old, new)).health_versions == (new, old)
    assert info(versions=("v1.DRAPlugin", old)).health_versions == (old,)
    assert INFO.health_versions == ()
