"""The reference pages are current and complete."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import pytest
from tools.generate_reference import DOCS, generated
from tools.reference import events, metrics, pictures

from dray.api.gate_table import GATES
from dray.framework.plugins import EXTENSION_POINTS

# What KEPs 3063, 3573, 3695, 4816 and 5004 name, with the prefix that Kubernetes gave it.
KEP_METRICS = {
    "controllers": {
        *("resource_controller_create_total", "resource_controller_create_failures_total"),
        *("resourceclaim_controller_create_total", "resourceclaim_controller_create_failures_total"),
        *("resourceclaim_controller_creates_total", "resourceclaim_controller_resource_claims"),
        *("resourceclaim_controller_allocated_resource_claims", "workqueue_depth", "workqueue_adds_total"),
        *("workqueue_queue_duration_seconds", "workqueue_work_duration_seconds", "workqueue_retries_total"),
    },
    "scheduler": {
        *("scheduler_pending_pods", "scheduler_plugin_execution_duration_seconds"),
        *("scheduler_resourceclaim_creates_total", "scheduler_schedule_attempts_total"),
    },
    "node agent": {
        *("kubelet_device_plugin_registration_total", "kubelet_device_plugin_alloc_duration_seconds"),
        *("kubelet_pod_resources_endpoint_requests_total", "kubelet_pod_resources_endpoint_requests_list"),
        *("kubelet_pod_resources_endpoint_requests_get", "kubelet_pod_resources_endpoint_requests_get_allocatable"),
        *("kubelet_pod_resources_endpoint_errors_list", "kubelet_pod_resources_endpoint_errors_get"),
        *("kubelet_pod_resources_endpoint_errors_get_allocatable", "kubelet_started_containers_errors_total"),
    },
}


def test_every_page_is_current() -> None:
    stale = [path.name for path, text in generated() if not path.exists() or path.read_text() != text]
    assert not stale, "run python -m tools.generate_reference"


@pytest.mark.behaviour("CL-23", "SP-88", "PL-34", "DP-14", "DP-37", "PR-20")
def test_metrics_of_the_keps_exist_with_help() -> None:
    found = asyncio.run(metrics.collected())
    for process, wanted in KEP_METRICS.items():
        described = {item.name: item for item in metrics.described(found[process])}
        assert wanted <= described.keys()
    every = [item for registry in found.values() for item in metrics.described(registry)]
    assert not [item.name for item in every if not item.help]
    assert "resource_claim" in metrics.queues_of(found["controllers"])


def _rows() -> Iterator[events.Row]:
    for rows in events.EVENTS.values():
        yield from rows


def test_every_reason_in_the_table_exists_in_its_package() -> None:
    assert not [row for row in _rows() if row.reason not in events.reasons_in(row.source)]


def test_every_recorded_reason_is_in_the_table() -> None:
    documented = {row.reason for row in _rows()} | events.NO_EVENTS.keys()
    assert not events.recorded_reasons() - documented, "describe it in tools/reference/events.py"
    assert not events.NO_EVENTS.keys() - events.recorded_reasons(), "no code uses it"


def test_every_gate_is_explained() -> None:
    assert not [name for name, gate in GATES.items() if not gate.description]


def test_every_extension_point_is_in_the_table() -> None:
    rows = re.findall(r"^\| [\w, ]+ \| (.+?) \| ", (DOCS / "scheduler.md").read_text(), re.MULTILINE)
    described = set(re.findall(r"`(?:async )?(\w+)", "\n".join(rows)))
    assert {point.method for point in EXTENSION_POINTS.values()} - described == {"sort_key"}, "no two queue orders"


def test_a_page_without_the_marker_of_the_diagram_is_rejected() -> None:
    page = (DOCS / "concepts.md").read_text()
    with pytest.raises(AssertionError, match="no place for the claim lifecycle"):
        pictures.rewritten(page.replace("generated: claim life", "claim life"))
