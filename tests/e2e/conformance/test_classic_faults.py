"""For every requirement of classic drivers there is a driver that violates only this one, and the check fails."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import aclosing

import pytest

from dray.cli.conformance.checks import classic
from dray.cli.conformance.classic_harness import ClassicHarness, ClassicParts
from dray.cli.conformance.cluster_objects import ClusterObjects
from dray.cli.conformance.findings import Finding, Verdict
from dray.cli.conformance.harness import Target, Timing
from dray.cli.conformance.requirements import CLASSIC_SECTIONS, REQUIREMENTS
from dray.cli.conformance.runner import run_classic_checks
from dray.client.in_process import in_process_client
from dray.client.resources import CLASSIC_CLASSES
from tests.e2e.conformance.classic.servicer import NAME, BreakableController, BreakablePlugin
from tests.e2e.driver.cluster import CLOCK, short_folder
from tests.local_server import local_server

NODE = "node-1"
CLASSIC = {name for name, item in REQUIREMENTS.items() if item.section in CLASSIC_SECTIONS}
CLAIM = {
    "apiVersion": "cdi.k8s.io/v1alpha1",
    "kind": "ResourceClaim",
    "metadata": {"name": "given"},
    "spec": {"resourceClassName": "test"},
}
CLASS = {
    "apiVersion": "cdi.k8s.io/v1alpha1",
    "kind": "ResourceClass",
    "metadata": {"name": "test"},
    "driverName": NAME,
}
PATIENT = Timing(30.0, 30.0, first_seconds=20.0)
# For what the driver does not do.
HASTY = Timing(30.0, 0.5, first_seconds=0.5)
FAULTS = {
    "classic-immediate": "the driver did not allocate the claim within 0.5 s",
    "classic-allocated": 'driverName is "other.example.com"',
    "classic-delayed": "the claim was allocated",
    "classic-unsuitable": "unsuitableNodes has elsewhere, which the scheduler did not ask about",
    "classic-selected": "availableOnNodes does not match node node-1, which was selected",
    "classic-reallocate": "attributes are {'unit': '1'}",
    "classic-in-use": "the claim was deallocated while it was reserved for a Pod",
    "classic-deleted": "the claim still exists 0.5 s after its deletion",
    "classic-other-driver": "the claim was changed",
    "classic-controller-restarted": "the claim still exists 0.5 s after its deletion",
    "classic-socket": 'type is "DRAPlugin"',
    "classic-prepare": "unqualified device",
    "classic-prepare-repeated": "CDI devices were",
    "classic-prepare-unallocated": "the call succeeded with",
    "classic-prepare-unknown": "the call succeeded with",
    "classic-unprepare": "NodeUnprepareResource: rpc error: code = NotFound desc = unprepared already",
    "classic-unprepare-unknown": "NodeUnprepareResource: rpc error: code = NotFound desc = never prepared",
    "classic-unprepare-deleted": "NodeUnprepareResource: rpc error: code = NotFound desc = no such claim",
    "classic-plugin-restarted": "CDI devices were",
}


async def check(fault: str, chosen: Collection[str], timing: Timing) -> list[Finding]:
    with short_folder() as folder:
        async with local_server(folder / "api") as local:
            client = in_process_client(local.running.local, user="admin", groups=("system:masters",))
            objects = ClusterObjects(client, CLOCK, NODE, "default", None)
            await objects.start([(CLASSIC_CLASSES.unstructured, CLASS)])
            target = Target(folder / "node", (str(folder / "cdi"),), NODE)
            controller = BreakableController(client, fault)
            plugin = BreakablePlugin(target.root, folder / "cdi", client, fault)
            parts = ClassicParts(client, "default", CLAIM, controller)
            await controller.start()
            await plugin.start()
            try:
                harness = ClassicHarness(target, objects, CLOCK, timing, plugin, parts)
                async with aclosing(run_classic_checks(harness, chosen)) as findings:
                    return [finding async for finding in findings]
            finally:
                await plugin.stop()
                await controller.stop()


def test_every_requirement_has_a_driver_that_breaks_it() -> None:
    assert set(FAULTS) == CLASSIC
    assert {item.name for item in (*classic.CONTROLLER.all, *classic.PLUGIN.all)} == CLASSIC


@pytest.mark.parametrize("fault", sorted(CLASSIC))
async def test_a_broken_driver_is_caught(fault: str) -> None:
    findings = await check(fault, {fault}, HASTY if "0.5 s" in FAULTS[fault] else PATIENT)
    (caught,) = [finding for finding in findings if finding.name == fault]
    assert caught.verdict is Verdict.FAILED, findings
    assert FAULTS[fault] in caught.reason


async def test_a_correct_driver_conforms() -> None:
    findings = await check("", CLASSIC, PATIENT)
    assert {finding.name for finding in findings} == CLASSIC
    assert [finding for finding in findings if finding.verdict is not Verdict.PASSED] == []
