"""For every requirement there is a driver that violates only this one, and the check fails."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Collection
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dray.api.document import Document
from dray.cli.conformance.cluster_objects import ClusterObjects
from dray.cli.conformance.findings import Finding, Verdict, conforms
from dray.cli.conformance.harness import Harness, Target, Timing
from dray.cli.conformance.requirements import CLASSIC_SECTIONS, REQUIREMENTS, Section
from dray.cli.conformance.runner import FIRST, run_driver_checks, run_plugin_checks
from dray.client.in_process import in_process_client
from tests.e2e.conformance.driver.servicer import NODE, BreakableDriver
from tests.e2e.conformance.plugin.servicer import BreakablePlugin
from tests.e2e.driver.cluster import CLOCK, short_folder
from tests.local_server import local_server

PLUGIN = {name for name, item in REQUIREMENTS.items() if item.section is Section.DEVICE_PLUGIN}
CLASSIC = {name for name, item in REQUIREMENTS.items() if item.section in CLASSIC_SECTIONS}
DRIVER = set(REQUIREMENTS) - PLUGIN - CLASSIC
PATIENT = Timing(30.0, 30.0, info_seconds=30.0, repair_seconds=30.0, first_seconds=20.0)


@dataclass(frozen=True, slots=True)
class Fault:
    """The expected finding for a violation; timeouts are short where something must not happen."""

    found: str
    timing: dict[str, float] = field(default_factory=dict)


FAULTS = {
    "registration-socket": Fault("no socket appeared", {"appear_seconds": 0.5}),
    "registration-info": Fault('type is "CSIPlugin"'),
    "registration-name": Fault('name "Bad_Name": a lowercase RFC 1123 subdomain'),
    "registration-versions": Fault("supported_versions is [v1]"),
    "registration-endpoint": Fault('endpoint "test.sock" is not an absolute path'),
    "registration-repeated": Fault("versions was ("),
    "registration-refused": Fault("no socket appeared", {"appear_seconds": 0.5}),
    "registration-accepted": Fault("NotifyRegistrationStatus: rpc error: code = Internal desc = not now"),
    "services-served": Fault("v1beta1.DRAPlugin: NodePrepareResources: rpc error: code = Unimplemented"),
    "slices-published": Fault("no ResourceSlice with driver test.example.com", {"appear_seconds": 0.5}),
    "slices-valid": Fault("first: spec.devices[0].name: Invalid value: "),
    "slices-node": Fault('first: nodeName is "elsewhere", the driver runs on "node-1"'),
    "slices-complete": Fault("pool node-1: resourceSliceCount is 2, there are 1 slices", {"first_seconds": 0.3}),
    "slices-current": Fault("old: generation 2, pool node-1 is at 3", {"first_seconds": 0.3}),
    "slices-unique": Fault("pool node-1: device a is listed 2 times"),
    "slices-repaired": Fault("0 of 1 slices after 0.5 s", {"repair_seconds": 0.5}),
    "slices-monotonic": Fault("pool node-1: first was written with generation 1 after 3"),
    "prepare-answered": Fault("no entry for claim default/dray-conformance-"),
    "prepare-devices": Fault("device node-1/z is not in the claim's allocation"),
    "prepare-repeated": Fault("the second time the response was"),
    "prepare-duplicate": Fault('has an error: "claim is there twice"'),
    "prepare-concurrent": Fault('has an error: "claim is being prepared"'),
    "prepare-empty": Fault("NodePrepareResources: rpc error: code = InvalidArgument desc = no claims"),
    "prepare-missing": Fault("has no error"),
    "prepare-replaced": Fault("has no error"),
    "prepare-unallocated": Fault("has no error"),
    "prepare-mixed": Fault("no entry for claim default/dray-conformance-"),
    "unprepare-answered": Fault('has an error: "never"'),
    "unprepare-repeated": Fault('has an error: "claim is unprepared already"'),
    "unprepare-unknown": Fault('has an error: "claim is unknown"'),
    "unprepare-deleted": Fault('has an error: "resourceclaims.resource.k8s.io'),
    "prepare-again": Fault('has an error: "claim has been used"'),
    "versions-agree": Fault("v1.DRAPlugin answers"),
    "cdi-qualified": Fault("unqualified device"),
    "cdi-present": Fault("is in no spec in"),
    "cdi-valid": Fault("-more.json: "),
    "cdi-unique": Fault("conflicting device"),
    "health-first": Fault("no list within 0.3 s", {"first_seconds": 0.3}),
    "health-devices": Fault("node-1/z is not published"),
    "health-again": Fault("NodeWatchResources: rpc error: code = FailedPrecondition desc = one watcher only"),
    "call-cancelled": Fault('has an error: "claim is locked"'),
    "kubelet-restarted": Fault("after the restart the response was"),
    "restart-registered": Fault("versions was ("),
    "restart-prepared": Fault("after the restart the response was"),
    "restart-deleted": Fault('has an error: "resourceclaims.resource.k8s.io'),
    "kill-prepare": Fault('has an error: "claim is locked"'),
    "kill-unprepare": Fault('has an error: "claim is locked"'),
    "calls-in-time": Fault("NodePrepareResources took 0.", {"call_seconds": 0.3}),
    "plugin-register": Fault('version is "v1alpha"'),
    "plugin-resource": Fault('resource_name is "gpu"'),
    "plugin-endpoint": Fault("calling the plugin at test.sock while it registers: not a socket"),
    "plugin-options": Fault("pre_start_required is False in Register and True in GetDevicePluginOptions"),
    "plugin-list": Fault("the stream ended: kubelet treats the plugin as stopped"),
    "plugin-devices": Fault("id a is listed 2 times"),
    "plugin-list-again": Fault("ListAndWatch: rpc error: code = FailedPrecondition desc = one watcher only"),
    "plugin-allocate": Fault("1 responses for 2 containers"),
    "plugin-allocate-repeated": Fault("Allocate: rpc error: code = AlreadyExists desc = device is in use"),
    "plugin-allocate-contents": Fault('"dev/null" is not an absolute path'),
    "plugin-preferred": Fault("c is missing"),
    "plugin-pre-start": Fault("PreStartContainer: rpc error: code = Internal desc = cannot reset"),
    "plugin-registers-again": Fault("Register was not called within 0.5 s"),
    "plugin-socket-again": Fault("calling the plugin at test.sock while it registers: not a socket"),
}
# Waited for in vain, after the driver was found in time.
LATE = {"plugin-registers-again": 0.5}


class CarelessObjects(ClusterObjects):
    """A server without validation, because the real one rejects an invalid slice."""

    async def slices(self) -> list[Document]:
        found = copy.deepcopy(await super().slices())
        for item in found:
            item["spec"]["devices"][0]["name"] = ""
        return found


@asynccontextmanager
async def running_harness(fault: str, timing: Timing) -> AsyncIterator[tuple[Harness, Path, Any]]:
    with short_folder() as folder:
        async with local_server(folder / "api") as local:
            client = in_process_client(local.running.local, user="admin", groups=("system:masters",))
            kind = CarelessObjects if fault == "slices-valid" else ClusterObjects
            objects = kind(client, CLOCK, NODE, "default", None)
            await objects.start()
            driver = BreakableDriver(folder / "node", folder / "cdi", client, fault)
            target = Target(folder / "node", (str(folder / "cdi"),), NODE)
            target.device_plugins.mkdir(parents=True)
            yield Harness(target, objects, CLOCK, timing, driver), folder, driver


async def check_driver(fault: str, chosen: Collection[str], timing: Timing) -> list[Finding]:
    async with running_harness(fault, timing) as (harness, _, driver):
        await driver.start()
        try:
            async with aclosing(run_driver_checks(harness, chosen)) as findings:
                return [finding async for finding in findings]
        finally:
            await driver.stop()


async def check_plugin(fault: str, chosen: Collection[str], timing: Timing) -> list[Finding]:
    async with running_harness(fault, timing) as (harness, _, _driver):
        plugin = BreakablePlugin(harness.target.device_plugins, fault)
        await plugin.start()
        found: list[Finding] = []
        try:
            async with aclosing(run_plugin_checks(harness, chosen)) as findings:
                async for finding in findings:
                    found.append(finding)
                    if finding.name in FIRST and fault in LATE:
                        harness.timing = Timing(LATE[fault])
                return found
        finally:
            await plugin.stop()


def test_every_requirement_has_a_driver_that_breaks_it() -> None:
    assert set(FAULTS) == DRIVER | PLUGIN


@pytest.mark.parametrize("fault", sorted(DRIVER))
async def test_a_broken_driver_is_caught(fault: str) -> None:
    expected = FAULTS[fault]
    values = {name: getattr(PATIENT, name) for name in Timing.__dataclass_fields__}
    # These look at what others have brought about.
    more = {"slices-monotonic": {"slices-repaired"}, "calls-in-time": {"prepare-answered"}}.get(fault, set())
    findings = await check_driver(fault, {fault, *more}, Timing(**{**values, **expected.timing}))
    caught = [finding for finding in findings if finding.name == fault]
    assert {finding.verdict for finding in caught} == {Verdict.FAILED}, findings
    assert all(expected.found in finding.reason for finding in caught), caught


@pytest.mark.parametrize("fault", sorted(PLUGIN))
async def test_a_broken_plugin_is_caught(fault: str) -> None:
    findings = await check_plugin(fault, {fault}, PATIENT)
    (caught,) = [finding for finding in findings if finding.name == fault]
    assert caught.verdict is Verdict.FAILED, findings
    assert FAULTS[fault].found in caught.reason


@pytest.mark.driver_conformance
async def test_a_driver_with_kubernetes_own_helper_conforms() -> None:
    """The Go helper refuses a call in which one claim is invalid, and complains when it is not registered."""
    findings = await check_driver("go-helper", DRIVER, PATIENT)
    advice = [finding for finding in findings if finding.verdict is Verdict.ADVICE]
    invalid = ("prepare-missing", "prepare-replaced", "prepare-unallocated", "prepare-mixed")
    assert [finding.title for finding in advice] == [
        "registration-refused",
        *(f"{name} ({version})" for name in invalid for version in ("v1", "v1beta1")),
    ]
    reasons = {finding.title: finding.reason for finding in advice}
    call = "the call failed for all its claims: NodePrepareResources: rpc error: code = Unknown desc = "
    assert reasons["prepare-unallocated (v1)"].startswith(call)
    assert reasons["registration-refused"] == (
        "NotifyRegistrationStatus: rpc error: code = Unknown desc = failed registration process: "
        "rejected by dray conformance"
    )
    assert [finding for finding in findings if finding.verdict not in (Verdict.PASSED, Verdict.ADVICE)] == []
    assert conforms(findings)


@pytest.mark.behaviour("N-23")
async def test_a_correct_driver_conforms() -> None:
    findings = await check_driver("", DRIVER, PATIENT)
    assert {finding.name for finding in findings} == DRIVER
    assert [finding for finding in findings if finding.verdict is not Verdict.PASSED] == []
    assert {finding.variant for finding in findings if finding.name == "prepare-answered"} == {"v1", "v1beta1"}


async def test_a_correct_plugin_conforms() -> None:
    findings = await check_plugin("", PLUGIN, PATIENT)
    assert [finding.name for finding in findings] == [name for name in REQUIREMENTS if name in PLUGIN]
    assert [finding for finding in findings if finding.verdict is not Verdict.PASSED] == []


async def test_restart_checks_are_skipped_without_a_restarter() -> None:
    async with running_harness("", PATIENT) as (harness, _, driver):
        await driver.start()
        bare = Harness(harness.target, harness.objects, CLOCK, PATIENT, None)
        async with aclosing(run_driver_checks(bare, {"restart-prepared", "prepare-repeated"})) as made:
            findings = {finding.name: finding async for finding in made}
        await driver.stop()
    assert findings["prepare-repeated"].verdict is Verdict.PASSED
    assert findings["restart-prepared"].verdict is Verdict.SKIPPED
    assert findings["restart-prepared"].reason == "the driver cannot be restarted: use --run or --restart-command"
