"""Validation of ResourceSlices."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dray.api.document import Document
from dray.api.validation.resource_slice import validate_slice
from tests.conformance.api.resource.resource_rows import IDENTIFIER, LABEL, LABEL_KEY, SUBDOMAIN, params, row, texts

D0 = "spec.devices[0]"
VALUES = "`int`, `bool`, `string`, `version`, `ints`, `bools`, `strings`, `versions`"
ONE_CHOICE = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
TERM = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}


def resource_slice(*devices: Document, **spec: Any) -> Document:
    base: Document = {
        "driver": "gpu.example.com",
        "pool": {"name": "pool", "generation": 1, "resourceSliceCount": 1},
        "nodeName": "n",
    }
    merged = {**base, "devices": list(devices), **spec}
    return {"metadata": {"name": "s"}, "spec": {key: value for key, value in merged.items() if value is not None}}


def device(name: str = "d", **fields: Any) -> Document:
    return {"name": name, **fields}


def many(count: int, **fields: Any) -> list[Document]:
    return [device(f"d{i}") for i in range(count - 1)] + [device("last", **fields)]


def pool(**fields: Any) -> Document:
    return resource_slice(pool={"name": "pool", "generation": 1, "resourceSliceCount": 1, **fields})


def counted(count: int) -> Document:
    return {"name": "set", "counters": {f"c{i}": {"value": "1"} for i in range(count)}}


def consumes(name: str = "set", count: int = 1) -> Document:
    return {"counterSet": name, "counters": {f"c{i}": {"value": "1"} for i in range(count)}}


def capacity(policy: Document | None = None, *, shareable: bool = True, value: str = "10") -> Document:
    item = {"value": value} | ({} if policy is None else {"requestPolicy": policy})
    return resource_slice(device(allowMultipleAllocations=shareable, capacity={"mem": item}))


def taint(**fields: Any) -> Document:
    return {"key": "example.com/k", "value": "v", "effect": "NoSchedule", **fields}


POLICY = f"{D0}.capacity[mem].requestPolicy"
ROWS = {
    "on a node": row("SP-02", resource_slice(device())),
    "on selected nodes": row("SP-02", resource_slice(nodeName=None, nodeSelector={"nodeSelectorTerms": [TERM]})),
    "on all nodes": row("SP-02", resource_slice(nodeName=None, allNodes=True)),
    "on nodes of each device": row(
        "SP-02", resource_slice(device(nodeName="n"), nodeName=None, perDeviceNodeSelection=True)
    ),
    "on no node": row("SP-02", resource_slice(nodeName=None), f"spec: Required value: {ONE_CHOICE}"),
    "on a node and all nodes": row(
        "SP-02",
        resource_slice(allNodes=True),
        f'spec: Invalid value: "{{`nodeName`, `allNodes`}}": {ONE_CHOICE}, but multiple fields are set',
    ),
    "false is not a choice": row(
        "SP-02",
        resource_slice(allNodes=False, perDeviceNodeSelection=False),
        "spec.allNodes: Invalid value: false: must be either unset or set to true",
        "spec.perDeviceNodeSelection: Invalid value: false: must be either unset or set to true",
    ),
    "empty node name": row(
        "SP-02",
        resource_slice(nodeName=""),
        'spec.nodeName: Invalid value: "": must be either unset or set to a non-empty string',
        f"spec: Required value: {ONE_CHOICE}",
    ),
    "bad node name": row("SP-02", resource_slice(nodeName="N_"), f'spec.nodeName: Invalid value: "N_": {SUBDOMAIN}'),
    "two terms": row(
        "SP-02",
        resource_slice(nodeName=None, nodeSelector={"nodeSelectorTerms": [{}, {}]}),
        'spec.nodeSelector.nodeSelectorTerms: Invalid value: [{"MatchExpressions":null,"MatchFields":null},'
        '{"MatchExpressions":null,"MatchFields":null}]: must have exactly one node selector term',
    ),
    "no terms": row(
        "SP-02",
        resource_slice(nodeName=None, nodeSelector={}),
        "spec.nodeSelector.nodeSelectorTerms: Required value: must have at least one node selector term",
        "spec.nodeSelector.nodeSelectorTerms: Invalid value: null: must have exactly one node selector term",
    ),
    "bad terms": row(
        "SP-02",
        resource_slice(
            nodeName=None,
            nodeSelector={
                "nodeSelectorTerms": [
                    {
                        "matchExpressions": [
                            {"key": "k", "operator": "In"},
                            {"key": "k", "operator": "Exists", "values": ["v"]},
                            {"key": "k", "operator": "Gt", "values": ["1", "2"]},
                            {"key": "k", "operator": "Near"},
                        ],
                        "matchFields": [{"key": "spec.x", "operator": "In", "values": ["a", "b"]}],
                    }
                ]
            },
        ),
        *(
            f"spec.nodeSelector.nodeSelectorTerms[0].{text}"
            for text in (
                "matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
                "matchExpressions[1].values: Forbidden: may not be specified when `operator` is 'Exists' or "
                "'DoesNotExist'",
                "matchExpressions[2].values: Required value: must be specified single value when `operator` is "
                "'Lt' or 'Gt'",
                'matchExpressions[3].operator: Invalid value: "Near": not a valid selector operator',
                "matchFields[0].values: Required value: must be only one value when `operator` is 'In' or 'NotIn' "
                "for node field selector",
                'matchFields[0].key: Invalid value: "spec.x": not a valid field selector key',
            )
        ),
    ),
    "driver in upper case": row("SP-03", resource_slice(driver="GPU.example.com")),
    "no driver": row("SP-03", resource_slice(driver=""), "spec.driver: Required value"),
    "driver of 64 bytes": row(
        "SP-03", resource_slice(driver="a" * 64), "spec.driver: Too long: may not be more than 63 characters"
    ),
    "driver with underscore": row(
        "SP-03", resource_slice(driver="a_b"), f'spec.driver: Invalid value: "a_b": {SUBDOMAIN}'
    ),
    "pool name with slashes": row("SP-03", pool(name="a.b/c/d")),
    "no pool name": row("SP-03", pool(name=""), "spec.pool.name: Required value"),
    "bad pool names": row(
        "SP-03",
        pool(name="a//B"),
        'spec.pool.name: Invalid value: "": segment 1: must not be empty',
        f'spec.pool.name: Invalid value: "B": segment 2: {SUBDOMAIN}',
    ),
    "pool name of 254 bytes": row(
        "SP-03", pool(name="a/" + "b" * 252), "spec.pool.name: Too long: may not be more than 253 bytes"
    ),
    "generation 0": row("SP-03", pool(generation=0)),
    "negative generation": row(
        "SP-03",
        pool(generation=-1),
        "spec.pool.generation: Invalid value: -1: must be greater than or equal to zero",
    ),
    "no slices": row(
        "SP-03",
        pool(resourceSliceCount=0),
        "spec.pool.resourceSliceCount: Invalid value: 0: must be greater than zero",
    ),
    "device names": row(
        "SP-04",
        resource_slice(device("a"), device("a"), device("A")),
        f'spec.devices[2].name: Invalid value: "A": {LABEL}',
        'spec.devices[1]: Duplicate value: "a"',
    ),
    "128 devices": row("SP-04", resource_slice(*many(128))),
    "129 devices": row("SP-04", resource_slice(*many(129)), "spec.devices: Too many: 129: must have at most 128 items"),
    "64 devices, one with taints": row("SP-04", resource_slice(*many(64, taints=[taint()]))),
    "65 devices, one with taints": row(
        "SP-04",
        resource_slice(*many(65, taints=[taint()])),
        "spec.devices: Too many: 65: must have at most 64 items",
    ),
    "65 devices, one with counters": row(
        "SP-04",
        resource_slice(*many(65, consumesCounters=[consumes()])),
        "spec.devices: Too many: 65: must have at most 64 items",
    ),
    "65 devices, one with a list": row(
        "SP-04",
        resource_slice(*many(65, attributes={"a": {"ints": [1]}})),
        "spec.devices: Too many: 65: must have at most 64 items",
    ),
    "65 devices, no taint in the list": row("SP-04", resource_slice(*many(65, taints=[]))),
    "32 attributes and capacities": row(
        "SP-05",
        resource_slice(
            device(
                attributes={f"a{i}": {"int": i} for i in range(16)},
                capacity={f"c{i}": {"value": "1"} for i in range(16)},
            )
        ),
    ),
    "33 attributes and capacities": row(
        "SP-05",
        resource_slice(
            device(
                attributes={f"a{i}": {"int": i} for i in range(17)},
                capacity={f"c{i}": {"value": "1"} for i in range(16)},
            )
        ),
        f"{D0}: Invalid value: 33: the total number of attributes and capacities must not exceed 32",
    ),
    "48 attribute values": row("SP-05", resource_slice(device(attributes={"a": {"ints": list(range(48))}}))),
    "49 attribute values": row(
        "SP-05",
        resource_slice(device(attributes={"a": {"ints": list(range(48))}, "b": {"int": 1}})),
        f"{D0}: Invalid value: 49: the total number of attribute values must not exceed 48",
    ),
    "names of attributes": row(
        "SP-06",
        resource_slice(
            device(
                attributes={"a_B1": {"int": 1}, "x.example.com/y": {"int": 1}, "a" * 32: {"int": 1}},
                capacity={"x/y": {"value": "1"}},
            )
        ),
    ),
    "bad names of attributes": row(
        "SP-06",
        resource_slice(device(attributes={"a-b": {"int": 1}, "a" * 33: {"int": 1}, "x_/y": {"int": 1}})),
        f'{D0}.attributes: Invalid value: "a-b": {IDENTIFIER}',
        f"{D0}.attributes: Too long: may not be more than 32 bytes",
        f'{D0}.attributes: Invalid value: "x_": prefix: {SUBDOMAIN}',
    ),
    "bad names of capacities": row(
        "SP-06",
        resource_slice(device(capacity={"": {"value": "1"}, "d" * 64 + "/c": {"value": "1"}})),
        f'{D0}.capacity: Invalid value: "": {IDENTIFIER}',
        f"{D0}.capacity: Too long: may not be more than 63 characters",
    ),
    "values": row(
        "SP-07",
        resource_slice(
            device(
                attributes={
                    "i": {"int": 0},
                    "b": {"bool": False},
                    "s": {"string": "a" * 64},
                    "v": {"version": "1.2.3-alpha.1+build.5"},
                    "l": {"strings": ["a", ""]},
                    "w": {"versions": ["0.0.1"]},
                }
            )
        ),
    ),
    "no value": row(
        "SP-07",
        resource_slice(device(attributes={"a": {}})),
        f'{D0}.attributes[a]: Invalid value: "": must specify one of: {VALUES}',
    ),
    "two values": row(
        "SP-07 N-144",
        resource_slice(device(attributes={"a": {"int": 1, "bool": True}})),
        f'{D0}.attributes[a]: Invalid value: "{{int, bool}}": must specify exactly one of: {VALUES}',
    ),
    "text of 65 bytes": row(
        "SP-07",
        resource_slice(device(attributes={"a": {"string": "ä" * 33}})),
        f"{D0}.attributes[a].string: Too long: may not be more than 64 bytes",
    ),
    "versions that are none": row(
        "SP-07",
        resource_slice(
            device(attributes={"a": {"version": "1.0"}, "b": {"version": "01.0.0"}, "c": {"version": "v1.0.0"}})
        ),
        *(
            f'{D0}.attributes[{key}].version: Invalid value: "{text}": '
            "must be a string compatible with semver.org spec 2.0.0"
            for key, text in (("a", "1.0"), ("b", "01.0.0"), ("c", "v1.0.0"))
        ),
    ),
    "bad lists": row(
        "SP-07",
        resource_slice(
            device(attributes={"a": {"ints": []}, "b": {"strings": ["x", "y" * 65]}, "c": {"versions": ["1"]}})
        ),
        f"{D0}.attributes[a].ints: Invalid value: []: must not be empty if specified",
        f"{D0}.attributes[b].strings[1]: Too long: may not be more than 64 bytes",
        f'{D0}.attributes[c].versions[0]: Invalid value: "1": must be a string compatible with semver.org spec 2.0.0',
    ),
    "path of a long key is shortened": row(
        "SP-06 SP-07",
        resource_slice(device(attributes={"a" * 100: {}})),
        f"{D0}.attributes: Too long: may not be more than 32 bytes",
        f'{D0}.attributes[{"a" * 47}...{"a" * 46}]: Invalid value: "": must specify one of: {VALUES}',
    ),
    "counters": row(
        "SP-24", resource_slice(sharedCounters=[{**counted(32), "name": f"s{i}"} for i in range(8)], devices=None)
    ),
    "counters and devices": row(
        "SP-24",
        resource_slice(device(), sharedCounters=[counted(1)]),
        'spec: Invalid value: "": only one of `sharedCounters` or `devices` is allowed',
    ),
    "nine counter sets": row(
        "SP-24",
        resource_slice(sharedCounters=[counted(1)] * 9, devices=None),
        "spec.sharedCounters: Too many: 9: must have at most 8 items",
    ),
    "33 counters": row(
        "SP-24",
        resource_slice(sharedCounters=[counted(33)], devices=None),
        "spec.sharedCounters[0].counters: Too many: 33: must have at most 32 items",
    ),
    "bad counter sets": row(
        "SP-24",
        resource_slice(
            sharedCounters=[{}, {"name": "S", "counters": {"C": {"value": "1"}}}, counted(1), counted(1)], devices=None
        ),
        "spec.sharedCounters[0].name: Required value",
        "spec.sharedCounters[0].counters: Required value",
        f'spec.sharedCounters[1].name: Invalid value: "S": {LABEL}',
        f'spec.sharedCounters[1].counters: Invalid value: "C": {LABEL}',
        'spec.sharedCounters[3]: Duplicate value: "set"',
    ),
    "two consumptions": row("SP-24", resource_slice(device(consumesCounters=[consumes("a"), consumes("b", 32)]))),
    "three consumptions": row(
        "SP-24",
        resource_slice(device(consumesCounters=[consumes()] * 3)),
        f"{D0}.consumesCounters: Too many: 3: must have at most 2 items",
    ),
    "bad consumptions": row(
        "SP-24",
        resource_slice(
            device(consumesCounters=[{}, consumes("a", 33)]), device("e", consumesCounters=[consumes()] * 2)
        ),
        f"{D0}.consumesCounters[0].counterSet: Required value",
        f"{D0}.consumesCounters[0].counters: Required value",
        f"{D0}.consumesCounters[1].counters: Too many: 33: must have at most 32 items",
        'spec.devices[1].consumesCounters[1]: Duplicate value: "set"',
    ),
    "taints": row(
        "SP-25",
        resource_slice(device(taints=[taint(), taint(effect="NoExecute", value=""), taint(effect="None", value=None)])),
    ),
    "17 taints": row(
        "SP-25",
        resource_slice(device(taints=[taint()] * 17)),
        f"{D0}.taints: Too many: 17: must have at most 16 items",
    ),
    "bad taints": row(
        "SP-25",
        resource_slice(device(taints=[{}, taint(effect="PreferNoSchedule")])),
        f'{D0}.taints[0].key: Invalid value: "": name part must be non-empty',
        f'{D0}.taints[0].key: Invalid value: "": name part {LABEL_KEY}',
        f"{D0}.taints[0].effect: Required value",
        f'{D0}.taints[1].effect: Unsupported value: "PreferNoSchedule": supported values: '
        '"NoExecute", "NoSchedule", "None"',
    ),
    "binding conditions": row(
        "SP-26",
        resource_slice(device(bindingConditions=["a", "b", "c", "d"], bindingFailureConditions=["e", "f", "g", "h"])),
    ),
    "too many binding conditions": row(
        "SP-26",
        resource_slice(
            device(bindingConditions=[f"a{i}" for i in range(5)], bindingFailureConditions=[f"b{i}" for i in range(5)])
        ),
        f"{D0}.bindingConditions: Too many: 5: must have at most 4 items",
        f"{D0}.bindingFailureConditions: Too many: 5: must have at most 4 items",
    ),
    "only binding failure conditions": row(
        "SP-26",
        resource_slice(device(bindingFailureConditions=["a"])),
        f"{D0}.bindingConditions: Invalid value: null: bindingConditions are required to use bindingFailureConditions",
    ),
    "repeated binding conditions": row(
        "SP-26",
        resource_slice(device(bindingConditions=["a", "a"], bindingFailureConditions=["b", "b", "a"])),
        f'{D0}.bindingConditions[1]: Duplicate value: "a"',
        f'{D0}.bindingFailureConditions[1]: Duplicate value: "b"',
        f'{D0}.bindingFailureConditions[2]: Invalid value: "a": '
        "bindingFailureConditions must not overlap with bindingConditions",
    ),
    "no policy": row("SP-27", capacity(shareable=False)),
    "policy without sharing": row(
        "SP-27",
        capacity({"default": "1"}, shareable=False),
        f"{POLICY}: Forbidden: allowMultipleAllocations must be true",
    ),
    "default alone": row("SP-27", capacity({"default": "1"})),
    "both policies": row(
        "SP-27",
        capacity({"default": "1", "validValues": ["1"], "validRange": {"min": "1"}}),
        f'{POLICY}: Forbidden: exactly one policy can be specified, cannot specify "validValues" and "validRange" '
        "at the same time",
    ),
    "valid values": row("SP-27", capacity({"default": "2", "validValues": ["1", "2", "10"]})),
    "valid values without default": row(
        "SP-27",
        capacity({"validValues": ["1"]}),
        f"{POLICY}.default: Required value: required when validValues is defined",
    ),
    "bad valid values": row(
        "SP-27",
        capacity({"default": "3", "validValues": ["2", "1", "11", "11"]}),
        f'{POLICY}.validValues[1]: Invalid value: "1": values must be sorted in ascending order',
        f'{POLICY}.validValues[2]: Invalid value: "11": option is larger than capacity value: 10',
        f'{POLICY}.validValues[3]: Invalid value: "11": option is larger than capacity value: 10',
        f'{POLICY}.validValues[3]: Duplicate value: "11"',
        f'{POLICY}.validValues: Invalid value: "3": default value is not valid according to the requestPolicy',
    ),
    "eleven valid values": row(
        "SP-27",
        capacity({"default": "1", "validValues": [str(i) for i in range(1, 12)]}, value="20"),
        f"{POLICY}.validValues: Too many: 11: must have at most 10 items",
        f'{POLICY}.validValues: Invalid value: "1": default value is not valid according to the requestPolicy',
    ),
    "valid range": row("SP-27", capacity({"default": "4", "validRange": {"min": "2", "max": "8", "step": "2"}})),
    "valid range of binary amounts": row(
        "SP-27",
        capacity({"default": "1Gi", "validRange": {"min": "512Mi", "max": "2Gi", "step": "512Mi"}}, value="4Gi"),
    ),
    "valid range without default": row(
        "SP-27",
        capacity({"validRange": {"min": "1"}}),
        f"{POLICY}.default: Required value: required when validRange is defined",
    ),
    "valid range without min": row(
        "SP-27",
        capacity({"default": "1", "validRange": {}}),
        f"{POLICY}.validRange.min: Required value: required when validRange is defined",
    ),
    "default out of range": row(
        "SP-27",
        capacity({"default": "1", "validRange": {"min": "2", "max": "1"}}),
        f'{POLICY}.validRange.default: Invalid value: "1": default is less than min: 2',
        f'{POLICY}.validRange.max: Invalid value: "2": min is larger than max: 1',
    ),
    "range beyond the capacity": row(
        "SP-27",
        capacity({"default": "13", "validRange": {"min": "11", "max": "12", "step": "1"}}),
        f'{POLICY}.validRange.min: Invalid value: "11": min is larger than capacity value: 10',
        f'{POLICY}.validRange.max: Invalid value: "12": max is larger than capacity value: 10',
        f'{POLICY}.validRange.default: Invalid value: "13": default is more than max: 12',
        f'{POLICY}.validRange.step: Invalid value: "1": one step 12 is larger than capacity value: 10',
    ),
    "range off its steps": row(
        "SP-27",
        capacity({"default": "3", "validRange": {"min": "2", "max": "7", "step": "2"}}),
        f'{POLICY}.validRange.step: Invalid value: "3": value is not a multiple of a given step (2) from (2)',
        f'{POLICY}.validRange.step: Invalid value: "7": value is not a multiple of a given step (2) from (2)',
    ),
    "step of zero": row(
        "SP-27",
        capacity({"default": "2", "validRange": {"min": "2", "step": "0"}}),
        f'{POLICY}.validRange.step: Invalid value: "0": must be greater than zero',
    ),
    "device without nodes": row(
        "SP-02",
        resource_slice(device(), device("e", allNodes=True, nodeName="n"), nodeName=None, perDeviceNodeSelection=True),
        f"{D0}: Required value: exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when "
        "`perDeviceNodeSelection` is set to true in the ResourceSlice spec",
        'spec.devices[1]: Invalid value: "{`nodeName`, `allNodes`}": exactly one of `nodeName`, `nodeSelector`, or '
        "`allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec",
    ),
    "device with nodes of its own": row(
        "SP-02",
        resource_slice(device(nodeName="n")),
        f"{D0}: Invalid value: null: `nodeName`, `nodeSelector` and `allNodes` can only be set if "
        "`perDeviceNodeSelection` is set to true in the ResourceSlice spec",
    ),
}


@pytest.mark.parametrize(("given", "expected"), params(ROWS))
def test_slice(given: Document, expected: list[str]) -> None:
    before = copy.deepcopy(given)
    assert texts(validate_slice(given)) == expected
    assert given == before


FRACTIONS = {
    "a step of thousandths": row(
        "N-93", capacity({"default": "200m", "validRange": {"min": "100m", "max": "1", "step": "100m"}})
    ),
    "not a multiple in thousandths": row(
        "N-93",
        capacity({"default": "250m", "validRange": {"min": "100m", "max": "1", "step": "100m"}}),
        f'{POLICY}.validRange.step: Invalid value: "250m": value is not a multiple of a given step (100m) from (100m)',
    ),
    "finer than thousandths": row(
        "N-93",
        capacity({"default": "1", "validRange": {"min": "1", "step": "0.1001"}}),
        f'{POLICY}.validRange.step: Invalid value: "100100u": value cannot be represented as a milli value',
    ),
    "too large for thousandths": row(
        "N-93",
        capacity({"default": "1", "validRange": {"min": "500m", "max": "9223372036854776"}}, value="9223372036854776"),
        f'{POLICY}.validRange.max: Invalid value: "9223372036854776": value cannot be represented as a milli value',
    ),
    "values that differ in a fraction": row("N-93", capacity({"default": "1500m", "validValues": ["1500m", "2"]})),
    "equal values": row(
        "N-93",
        capacity({"default": "1500m", "validValues": ["1500m", "1.5"]}),
        f'{POLICY}.validValues[1]: Duplicate value: "1500m"',
    ),
}


@pytest.mark.parametrize(("given", "expected"), params(FRACTIONS))
def test_fractional_ranges(given: Document, expected: list[str]) -> None:
    assert texts(validate_slice(given, fractional=True)) == expected


WHOLE = {
    "rounded up without the gate": row(
        "N-93",
        capacity({"default": "1500m", "validValues": ["1500m", "2"]}),
        f'{POLICY}.validValues[1]: Duplicate value: "2"',
    ),
    "a negative bound": row(
        "N-94",
        capacity({"default": "1", "validRange": {"min": "-1", "step": "1"}}),
        f'{POLICY}.validRange.min: Invalid value: "-1": must be greater than or equal to 0',
    ),
    "a bound that is too large": row(
        "N-94",
        capacity(
            {"default": "1", "validRange": {"min": "1", "max": "9223372036854775808", "step": "1"}},
            value="9223372036854775808",
        ),
        f'{POLICY}.validRange.max: Invalid value: "9223372036854775808": must not be larger than 9223372036854775807',
    ),
    "a step of zero": row(
        "N-94",
        capacity({"default": "2", "validRange": {"min": "2", "step": "0"}}),
        f'{POLICY}.validRange.step: Invalid value: "0": must be greater than zero',
    ),
    "a default below the range": row(
        "N-94",
        capacity({"default": "1", "validRange": {"min": "2", "step": "1"}}),
        f'{POLICY}.validRange.default: Invalid value: "1": default is less than min: 2',
    ),
}


@pytest.mark.parametrize(("given", "expected"), params(WHOLE))
def test_ranges_of_whole_numbers(given: Document, expected: list[str]) -> None:
    assert texts(validate_slice(given)) == expected


OLD_POLICY = {"default": "1", "validRange": {}}
# A row's given is (old, new).
UPDATES = {
    "nothing": row("SP-03", (resource_slice(device()), resource_slice(device()))),
    "devices": row("SP-03", (resource_slice(device()), resource_slice(device("e")))),
    "pool generation": row("SP-03", (pool(), pool(generation=2))),
    "driver": row(
        "SP-03",
        (resource_slice(), resource_slice(driver="other")),
        'spec.driver: Invalid value: "other": field is immutable',
    ),
    "pool name": row(
        "SP-03", (pool(), pool(name="other")), 'spec.pool.name: Invalid value: "other": field is immutable'
    ),
    "node name": row(
        "SP-03",
        (resource_slice(), resource_slice(nodeName="other")),
        'spec.nodeName: Invalid value: "other": field is immutable',
    ),
    "node name removed": row(
        "SP-03",
        (resource_slice(), resource_slice(nodeName=None, allNodes=True)),
        "spec.nodeName: Invalid value: null: field is immutable",
    ),
    "unknown effect that is stored": row(
        "SP-25",
        (
            resource_slice(device(taints=[taint(effect="Some")])),
            resource_slice(device(taints=[taint(effect="Some")], attributes={"a": {"int": 1}})),
        ),
    ),
    "unknown effect in changed taints": row(
        "SP-25",
        (
            resource_slice(device(taints=[taint(effect="Some")])),
            resource_slice(device(taints=[taint(effect="Some", value="w")])),
        ),
        f'{D0}.taints[0].effect: Unsupported value: "Some": supported values: "NoExecute", "NoSchedule", "None"',
    ),
    "stored capacity": row("SP-27 SP-28 N-95", (capacity(OLD_POLICY), capacity(OLD_POLICY))),
    "changed capacity": row(
        "SP-27 SP-28",
        (capacity(OLD_POLICY), capacity(OLD_POLICY, value="11")),
        f"{POLICY}.validRange.min: Required value: required when validRange is defined",
    ),
}


@pytest.mark.parametrize(("given", "expected"), params(UPDATES))
def test_slice_update(given: tuple[Document, Document], expected: list[str]) -> None:
    old, new = given
    before = copy.deepcopy(given)
    assert texts(validate_slice(new, old)) == expected
    assert given == before
