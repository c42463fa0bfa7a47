"""Validation of ResourceClaim statuses and their updates."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dray.api.document import Document
from dray.api.validation.resource_claim_status import validate_claim_status_update
from tests.conformance.api.resource.resource_rows import LABEL, SUBDOMAIN, params, row, texts

REFERENCE = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
RESULTS = "status.allocation.devices.results"
LOWERCASE_UUID = "must be a lowercase UUID in 8-4-4-4-12 format"
UUID = "a3b6a1e2-0f6c-4f2c-9c1e-2f6d1b8b7c11"
USER = {"resource": "pods", "name": "p", "uid": "1"}


def claim(status: Document | None = None, *, deleted: bool = False) -> Document:
    metadata = {"name": "c", "namespace": "n"} | ({"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleted else {})
    requests = [{"name": "r", "exactly": {}}, {"name": "s", "firstAvailable": [{"name": "a"}, {"name": "b"}]}]
    return {"metadata": metadata, "spec": {"devices": {"requests": requests}}, "status": status or {}}


def result(**fields: Any) -> Document:
    return {"request": "r", "driver": "d.example.com", "pool": "p", "device": "d0", **fields}


def allocation(*results: Document, **fields: Any) -> Document:
    return {"allocation": {"devices": {"results": list(results) or [result()]}, **fields}}


def reported(**fields: Any) -> Document:
    return {"driver": "d.example.com", "pool": "p", "device": "d0", **fields}


def condition(**fields: Any) -> Document:
    return {"type": "Ready", "status": "True", "reason": "Fine", "lastTransitionTime": "2026-01-01T00:00:00Z", **fields}


def config(**fields: Any) -> Document:
    return {"source": "FromClass", "opaque": {"driver": "d", "parameters": {}}, **fields}


def configured(*entries: Document) -> Document:
    return {"allocation": {"devices": {"results": [result()], "config": list(entries)}}}


ALLOCATED = allocation()
# A row's given is (old, new).
ROWS = {
    "no change": row("SP-19", (claim(), claim())),
    "allocate": row("SP-19", (claim(), claim(ALLOCATED))),
    "deallocate": row("SP-19", (claim(ALLOCATED), claim())),
    "change an allocation": row(
        "SP-19 N-144",
        (claim(ALLOCATED), claim(allocation(result(device="d1")))),
        "status.allocation: Invalid value: null: field cannot be modified once set",
    ),
    "a stored allocation is not judged again": row(
        "SP-19", (claim(allocation(result(driver="BAD_"))), claim(allocation(result(driver="BAD_"))))
    ),
    "32 results": row("SP-19", (claim(), claim(allocation(*[result(device=f"d{i}") for i in range(32)])))),
    "33 results": row(
        "SP-19",
        (claim(), claim(allocation(*[result() for _ in range(33)]))),
        f"{RESULTS}: Too many: 33: must have at most 32 items",
    ),
    "result of an unknown request": row(
        "SP-19",
        (claim(), claim(allocation(result(request="x")))),
        f'{RESULTS}[0].request: Invalid value: "x": {REFERENCE}',
    ),
    "result of nothing": row(
        "SP-19",
        (claim(), claim(allocation({"request": "r"}))),
        f"{RESULTS}[0].driver: Required value",
        f"{RESULTS}[0].pool: Required value",
        f'{RESULTS}[0].device: Invalid value: "": {LABEL}',
    ),
    "result with bad names": row(
        "SP-19",
        (claim(), claim(allocation(result(driver="d_", pool="p//q", device="a/b")))),
        f'{RESULTS}[0].driver: Invalid value: "d_": {SUBDOMAIN}',
        f'{RESULTS}[0].pool: Invalid value: "": segment 1: must not be empty',
        f'{RESULTS}[0].device: Invalid value: "a/b": {LABEL}',
    ),
    "result of an alternative": row("PL-12", (claim(), claim(allocation(result(request="s/b"))))),
    "result of an unknown alternative": row(
        "PL-12",
        (claim(), claim(allocation(result(request="s/x")))),
        f'{RESULTS}[0].request: Invalid value: "s/x": {REFERENCE}',
    ),
    "result of an alternative without its request": row(
        "PL-12",
        (claim(), claim(allocation(result(request="b")))),
        f'{RESULTS}[0].request: Invalid value: "b": {REFERENCE}',
    ),
    "configuration": row(
        "SP-19", (claim(), claim(configured(config(), config(source="FromClaim", requests=["r", "s/a"]))))
    ),
    "configuration of bad sources": row(
        "SP-19",
        (claim(), claim(configured(config(source=""), config(source="FromMe", requests=["x"])))),
        "status.allocation.devices.config[0].source: Required value",
        'status.allocation.devices.config[1].source: Unsupported value: "FromMe": supported values: '
        '"FromClaim", "FromClass"',
        f'status.allocation.devices.config[1].requests[0]: Invalid value: "x": {REFERENCE}',
    ),
    "64 configurations": row("SP-19", (claim(), claim(configured(*[config()] * 64)))),
    "65 configurations": row(
        "SP-19",
        (claim(), claim(configured(*[config()] * 65))),
        "status.allocation.devices.config: Too many: 65: must have at most 64 items",
    ),
    "node selector without terms": row(
        "SP-19",
        (claim(), claim(allocation(nodeSelector={}))),
        "status.allocation.nodeSelector.nodeSelectorTerms: Required value: must have at least one node selector term",
    ),
    "share": row("SP-21", (claim(), claim(allocation(result(shareID=UUID))))),
    "bad shares": row(
        "SP-21 N-144",
        (claim(), claim(allocation(result(shareID="x"), result(shareID=UUID.upper()), result(shareID="z" * 36)))),
        f'{RESULTS}[0].shareID: Invalid value: "x": {LOWERCASE_UUID}',
        f'{RESULTS}[1].shareID: Invalid value: "{UUID.upper()}": {LOWERCASE_UUID}',
        f'{RESULTS}[2].shareID: Invalid value: "{"z" * 36}": {LOWERCASE_UUID}',
    ),
    "tolerations of a result": row(
        "N-142",
        (
            claim(),
            claim(
                allocation(
                    result(
                        tolerations=[
                            {"operator": "Exists", "value": "v"},
                            {"key": "k", "operator": "Equal", "effect": "Other"},
                            {},
                        ]
                    )
                )
            ),
        ),
        f'{RESULTS}[0].tolerations[0].value: Invalid value: "v": must be empty for operator `Exists`',
        f'{RESULTS}[0].tolerations[1].effect: Unsupported value: "Other": '
        'supported values: "NoExecute", "NoSchedule", "None"',
        f"{RESULTS}[0].tolerations[2].operator: Required value",
    ),
    "binding conditions of a result": row(
        "SP-26",
        (claim(), claim(allocation(result(bindingConditions=["a"])))),
        f"{RESULTS}[0].bindingFailureConditions: Invalid value: null: "
        "bindingFailureConditions are required to use bindingConditions",
    ),
    "allocate and reserve": row("SP-20", (claim(), claim(ALLOCATED | {"reservedFor": [USER]}))),
    "256 users": row(
        "SP-20",
        (claim(ALLOCATED), claim(ALLOCATED | {"reservedFor": [USER | {"uid": str(i)} for i in range(256)]})),
    ),
    "257 users": row(
        "SP-20",
        (claim(ALLOCATED), claim(ALLOCATED | {"reservedFor": [USER] * 257})),
        "status.reservedFor: Too many: 257: must have at most 256 items",
    ),
    "same user twice": row(
        "SP-20",
        (claim(ALLOCATED), claim(ALLOCATED | {"reservedFor": [USER, USER | {"name": "q"}]})),
        'status.reservedFor[1]: Duplicate value: "1"',
    ),
    "user of nothing": row(
        "SP-20",
        (claim(ALLOCATED), claim(ALLOCATED | {"reservedFor": [{}]})),
        "status.reservedFor[0].resource: Required value",
        "status.reservedFor[0].name: Required value",
        "status.reservedFor[0].uid: Required value",
    ),
    "reserve without allocation": row(
        "SP-20",
        (claim(), claim({"reservedFor": [USER]})),
        "status.reservedFor: Forbidden: may not be specified when `allocated` is not set",
    ),
    "reserve while deleting": row(
        "SP-20",
        (claim(ALLOCATED, deleted=True), claim(ALLOCATED | {"reservedFor": [USER]}, deleted=True)),
        "status.reservedFor: Forbidden: new entries may not be added while `deallocationRequested` or "
        "`deletionTimestamp` are set",
    ),
    "keep and drop users while deleting": row(
        "SP-20",
        (
            claim(ALLOCATED | {"reservedFor": [USER, USER | {"uid": "2"}]}, deleted=True),
            claim(ALLOCATED | {"reservedFor": [USER]}, deleted=True),
        ),
    ),
    "device status": row(
        "SP-21",
        (
            claim(ALLOCATED),
            claim(
                ALLOCATED
                | {
                    "devices": [
                        reported(
                            conditions=[condition()],
                            data={"k": "v"},
                            networkData={"interfaceName": "eth0", "ips": ["10.9.8.0/24", "2001:db8::1/64"]},
                        )
                    ]
                }
            ),
        ),
    ),
    "device status of a device that is not allocated": row(
        "SP-21",
        (claim(ALLOCATED), claim(ALLOCATED | {"devices": [reported(device="d1")]})),
        "status.devices[0]: Invalid value: d.example.com/p/d1: must be an allocated device in the claim",
    ),
    "device status without allocation": row(
        "SP-21",
        (claim(), claim({"devices": [reported()]})),
        "status.devices[0]: Invalid value: d.example.com/p/d0: must be an allocated device in the claim",
    ),
    "device status of another share": row(
        "SP-21",
        (
            claim(allocation(result(shareID=UUID))),
            claim(allocation(result(shareID=UUID)) | {"devices": [reported(), reported(shareID=UUID)]}),
        ),
        "status.devices[0]: Invalid value: d.example.com/p/d0: must be an allocated device in the claim",
    ),
    "device status twice": row(
        "SP-21",
        (claim(ALLOCATED), claim(ALLOCATED | {"devices": [reported(), reported()]})),
        "status.devices[1]: Duplicate value: d.example.com/p/d0",
    ),
    "nine conditions": row(
        "SP-21",
        (
            claim(ALLOCATED),
            claim(ALLOCATED | {"devices": [reported(conditions=[condition(type=f"T{i}") for i in range(9)])]}),
        ),
        "status.devices[0].conditions: Too many: 9: must have at most 8 items",
    ),
    "condition without status": row(
        "SP-21",
        (claim(ALLOCATED), claim(ALLOCATED | {"devices": [reported(conditions=[condition(status="")])]})),
        'status.devices[0].conditions[0].status: Unsupported value: "": supported values: "False", "True", "Unknown"',
    ),
    "too much data": row(
        "SP-21",
        (claim(ALLOCATED), claim(ALLOCATED | {"devices": [reported(data={"k": "a" * 10240})]})),
        "status.devices[0].data: Too long: may not be more than 10240 bytes",
    ),
    "data that is no object": row(
        "SP-21",
        (claim(ALLOCATED), claim(ALLOCATED | {"devices": [reported(data="x")]})),
        'status.devices[0].data: Invalid value: "<value omitted>": must be a valid JSON object',
    ),
    "network names too long": row(
        "SP-21",
        (
            claim(ALLOCATED),
            claim(
                ALLOCATED
                | {"devices": [reported(networkData={"interfaceName": "e" * 257, "hardwareAddress": "0" * 129})]}
            ),
        ),
        "status.devices[0].networkData.interfaceName: Too long: may not be more than 256 bytes",
        "status.devices[0].networkData.hardwareAddress: Too long: may not be more than 128 bytes",
    ),
    "addresses": row(
        "SP-21",
        (
            claim(ALLOCATED),
            claim(
                ALLOCATED
                | {
                    "devices": [
                        reported(
                            networkData={
                                "ips": ["10.9.8.7", "300.9.8.0/24", "010.9.8.7/24", "2001:DB8::1/64", "1.1.1.1/1"] * 1
                                + ["1.1.1.1/1"]
                            }
                        )
                    ]
                }
            ),
        ),
        'status.devices[0].networkData.ips[0]: Invalid value: "10.9.8.7": '
        "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)",
        'status.devices[0].networkData.ips[1]: Invalid value: "300.9.8.0/24": '
        "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)",
        'status.devices[0].networkData.ips[2]: Invalid value: "010.9.8.7/24": '
        'must be in canonical form ("10.9.8.7/24")',
        'status.devices[0].networkData.ips[3]: Invalid value: "2001:DB8::1/64": '
        'must be in canonical form ("2001:db8::1/64")',
        'status.devices[0].networkData.ips[5]: Duplicate value: "1.1.1.1/1"',
    ),
    "17 addresses": row(
        "SP-21",
        (claim(ALLOCATED), claim(ALLOCATED | {"devices": [reported(networkData={"ips": ["x"] * 17})]})),
        "status.devices[0].networkData.ips: Too many: 17: must have at most 16 items",
    ),
}


@pytest.mark.parametrize(("given", "expected"), params(ROWS))
def test_claim_status(given: tuple[Document, Document], expected: list[str]) -> None:
    old, new = given
    before = copy.deepcopy(given)
    assert texts(validate_claim_status_update(new, old)) == expected
    assert given == before
