"""Choosing a driver's service and instance, reading its answers, cleaning up its slices, and its devices' health."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from dray.api.codec import from_document
from dray.api.document import UID, NamespacedName
from dray.api.types.core_v1 import Pod
from dray.node.dra.claim_info_cache import ClaimRef
from dray.node.dra.claims import ClaimInfo, Device
from dray.node.dra.driver_client import ResponseError, check_response, choose_service
from dray.node.dra.driver_registry import Instances
from dray.node.dra.health.cache import DEVICES_MAX, DeviceHealth, DeviceKey, Health, HealthCache, Update, shorten
from dray.node.dra.health.statuses import resource_statuses
from dray.node.dra.slice_cleaner import EVERY_DRIVER, SliceCleanup
from dray.node.plugins.handler import Plugin, PluginError
from dray.rpc.dra_services import choose_health_service


def plugin(*versions: str) -> Plugin:
    return Plugin("DRAPlugin", "d", "/dra.sock", versions, "/reg.sock")


@pytest.mark.behaviour("SP-132")
@pytest.mark.parametrize(
    ("versions", "chosen"),
    [
        (("v1.DRAPlugin", "v1beta1.DRAPlugin"), "v1.DRAPlugin"),
        (("v1beta1.DRAPlugin", "v1.DRAPlugin"), "v1beta1.DRAPlugin"),
        (("v1alpha1.DRAResourceHealth", "v9.DRAPlugin", "v1beta1.DRAPlugin"), "v1beta1.DRAPlugin"),
    ],
)
def test_the_plugins_order_decides(versions: tuple[str, ...], chosen: str) -> None:
    assert choose_service(plugin(*versions)) == chosen


@pytest.mark.behaviour("SP-132")
@pytest.mark.parametrize(
    ("versions", "message"),
    [
        ((), "empty list of supported gRPC services (aka supported versions)"),
        (
            ("1.0.0", "v2"),
            'none of services supported by the plugin (["1.0.0" "v2"]) are supported by the kubelet '
            '(["v1.DRAPlugin" "v1beta1.DRAPlugin"])',
        ),
    ],
)
def test_a_plugin_we_cannot_speak_to(versions: tuple[str, ...], message: str) -> None:
    with pytest.raises(PluginError) as refused:
        choose_service(plugin(*versions))
    prefix = "invalid supported gRPC versions of DRA driver plugin d at endpoint /dra.sock: "
    assert str(refused.value) == prefix + message


@dataclass(slots=True)
class Instance:
    name: str
    connected: bool = True


@pytest.mark.behaviour("SP-133")
def test_the_newest_connected_instance_is_used_else_the_newest() -> None:
    instances: Instances[Instance] = Instances()
    old, new = Instance("old"), Instance("new")
    assert instances.get("d") is None
    instances.add("d", "/old", old)
    instances.add("d", "/new", new)
    assert instances.get("d") is new
    new.connected = False
    assert instances.get("d") is old
    old.connected = False
    assert instances.get("d") is new
    assert not instances.usable("d")
    assert instances.remove("d", "/new") is new
    assert instances.get("d") is old
    assert instances.remove("d", "/none") is None
    instances.remove("d", "/old")
    assert instances.values() == ()


@pytest.mark.behaviour("SP-133")
def test_an_endpoint_is_one_instances_alone() -> None:
    instances: Instances[Instance] = Instances()
    instances.add("d", "/a", Instance("first"))
    with pytest.raises(PluginError, match="endpoint /a already registered for DRA driver plugin d"):
        instances.add("d", "/a", Instance("second"))


def refs(*names: str) -> tuple[ClaimRef, ...]:
    return tuple(ClaimRef(UID(f"uid-{name}"), NamespacedName("default", name)) for name in names)


@pytest.mark.behaviour("SP-112")
@pytest.mark.parametrize(
    ("errors", "message"),
    [
        pytest.param(
            {"uid-a": "", "uid-b": "out of order"},
            "NodePrepareResources failed for ResourceClaim b: out of order",
            id="an entry's error",
        ),
        pytest.param(
            {"uid-a": "", "uid-c": ""}, "NodePrepareResources returned result for unknown claim UID uid-c", id="unknown"
        ),
        pytest.param({"uid-a": ""}, "NodePrepareResources skipped 1 ResourceClaims", id="one missing"),
        pytest.param({}, "NodePrepareResources skipped 2 ResourceClaims", id="all missing"),
    ],
)
def test_answers_that_settle_nothing(errors: dict[str, str], message: str) -> None:
    with pytest.raises(ResponseError) as refused:
        check_response("NodePrepareResources", refs("a", "b"), errors)
    assert str(refused.value) == message


def test_an_answer_to_everything() -> None:
    assert check_response("M", refs("a", "b"), {"uid-b": "", "uid-a": ""}) == (UID("uid-a"), UID("uid-b"))


@pytest.mark.behaviour("SP-124")
def test_all_slices_go_at_the_start_and_a_drivers_30_seconds_after_it_is_gone() -> None:
    cleanup = SliceCleanup(100.0)
    assert cleanup.due(100.0) == (EVERY_DRIVER,)
    cleanup.done(EVERY_DRIVER)
    assert cleanup.next_due() is None
    cleanup.unusable("d", 200.0)
    cleanup.unusable("d", 220.0)
    assert cleanup.due(229.9) == ()
    assert cleanup.due(230.0) == ("d",)


@pytest.mark.behaviour("SP-124")
def test_a_reconnect_cancels() -> None:
    cleanup = SliceCleanup(0.0)
    cleanup.done(EVERY_DRIVER)
    cleanup.unusable("d", 0.0)
    cleanup.usable("d")
    assert cleanup.next_due() is None
    # It also ends the retries of a deletion that was under way.
    cleanup.failed("d", 1.0)
    assert cleanup.next_due() is None


@pytest.mark.behaviour("SP-124")
def test_failures_back_off_from_one_second_to_five_minutes() -> None:
    cleanup, now, waits = SliceCleanup(0.0), 0.0, []
    for _ in range(12):
        cleanup.failed(EVERY_DRIVER, now)
        due = cleanup.next_due()
        assert due is not None
        waits.append(due - now)
        now = due
    assert waits[:4] == [1.0, 2.0, 4.0, 8.0]
    assert waits[-1] == 300.0


NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEY = DeviceKey("d", "p", "x")
SICK = DeviceHealth(Health.UNHEALTHY, "hot")


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


@pytest.mark.behaviour("SP-125")
def test_health_is_unknown_before_the_first_report_and_after_the_timeout() -> None:
    cache = HealthCache()
    assert cache.get(KEY, NOW).health is Health.UNKNOWN
    assert cache.report("d", {("p", "x"): SICK}, NOW).changed == {KEY}
    assert cache.report("d", {("p", "x"): SICK}, NOW).changed == frozenset()
    assert cache.get(KEY, later(30)) == SICK
    assert cache.get(KEY, later(31)) == DeviceHealth()
    assert cache.expire(later(30)) == frozenset()
    assert cache.expire(later(31)) == {KEY}


@pytest.mark.behaviour("N-19")
def test_a_device_that_is_left_out_expires_by_itself_and_only_a_known_health_is_a_change() -> None:
    cache = HealthCache()
    cache.report("d", {("p", "x"): SICK, ("p", "y"): DeviceHealth(Health.UNKNOWN)}, NOW)
    assert cache.report("d", {("p", "z"): SICK}, later(20)).changed == {DeviceKey("d", "p", "z")}
    assert cache.get(KEY, later(30)) == SICK
    assert cache.report("d", {("p", "z"): SICK}, later(40)).changed == {KEY}
    assert cache.expire(later(41)) == frozenset()
    assert b'"x"' not in cache.encode()


@pytest.mark.behaviour("N-20")
def test_a_driver_has_a_limited_number_of_devices() -> None:
    cache = HealthCache()
    names = [("p", f"d{number}") for number in range(DEVICES_MAX + 2)]
    update = cache.report("d", dict.fromkeys(names, SICK), NOW)
    assert (len(update.changed), update.ignored) == (DEVICES_MAX, 2)
    # Known devices are still updated, and other drivers have their own limit.
    fine = DeviceHealth(Health.HEALTHY)
    assert cache.report("d", {names[0]: fine, names[-1]: fine}, NOW).changed == {DeviceKey("d", *names[0])}
    assert cache.report("e", {("p", "x"): fine}, NOW).ignored == 0
    restored = HealthCache()
    restored.restore(cache.encode())
    assert restored.encode() == cache.encode()


@pytest.mark.behaviour("N-20")
@pytest.mark.parametrize(("pool", "device"), [("p" * 254, "x"), ("p", "x" * 64)])
def test_names_that_no_slice_can_have_are_not_stored(pool: str, device: str) -> None:
    assert HealthCache().report("d", {(pool, device): SICK}, NOW) == Update(frozenset(), 1)


@pytest.mark.behaviour("N-16", "N-17")
@pytest.mark.parametrize(
    ("listed", "chosen"),
    [
        (("v1alpha1.DRAResourceHealth", "v1.DRAResourceHealth"), "v1.DRAResourceHealth"),
        (("v1.DRAPlugin", "v1.DRAResourceHealth"), "v1.DRAResourceHealth"),
        (("v1.DRAPlugin", "v1alpha1.DRAResourceHealth"), "v1alpha1.DRAResourceHealth"),
        (("v1.DRAPlugin",), None),
        ((), None),
    ],
)
def test_the_newest_health_service_is_watched_in_whatever_order_it_is_listed(
    listed: tuple[str, ...], chosen: str | None
) -> None:
    assert choose_health_service(listed) == chosen


@pytest.mark.behaviour("SP-125")
def test_drivers_choose_their_timeout_and_long_messages_are_cut() -> None:
    assert DeviceHealth.reported(Health.HEALTHY, "", 0).timeout_seconds == 30
    assert DeviceHealth.reported(Health.HEALTHY, "", -5).timeout_seconds == 30
    assert DeviceHealth.reported(Health.HEALTHY, "", 5).timeout_seconds == 5
    assert shorten("m" * 1024) == "m" * 1024
    assert shorten("m" * 1025) == "m" * 1021 + "..."


@pytest.mark.behaviour("SP-125")
def test_the_end_of_the_stream_clears_the_driver_and_the_file_keeps_the_rest() -> None:
    cache = HealthCache()
    cache.report("d", {("p", "x"): SICK}, NOW)
    cache.report("e", {("p", "y"): DeviceHealth(Health.HEALTHY, "", 7)}, NOW)
    restored = HealthCache()
    restored.restore(cache.encode())
    assert restored.get(KEY, NOW) == SICK
    assert restored.next_expiry() == later(7)
    assert restored.clear("d") == {KEY}
    assert restored.get(DeviceKey("e", "p", "y"), NOW).health is Health.HEALTHY
    with pytest.raises(ValueError, match="damaged"):
        restored.restore(b'{"d": {}}')


@pytest.mark.behaviour("SP-125")
def test_a_container_shows_the_health_of_each_claim_or_request() -> None:
    pod = from_document(
        Pod,
        {
            "metadata": {"name": "p", "namespace": "default"},
            "spec": {
                "resourceClaims": [
                    {"name": "gpu", "resourceClaimName": "c"},
                    {"name": "nic", "resourceClaimName": "n"},
                ],
                "containers": [
                    {"name": "m", "resources": {"claims": [{"name": "gpu", "request": "one"}, {"name": "nic"}]}}
                ],
            },
        },
    )
    devices = {"d": (Device("p", "x", None, ("one",), ("v/c=x",)), Device("p", "y", None, ("two",)), Device("p", "z"))}
    info = ClaimInfo(UID("u"), NamespacedName("default", "c"), devices)
    shown = resource_statuses(
        pod,
        pod.spec.containers[0],
        lambda key: info if key == info.key else None,
        lambda key: SICK if key == KEY else DeviceHealth(),
    )
    (status,) = shown
    assert status.name == "claim:gpu/one"
    assert [(item.resource_id, item.health, item.message) for item in status.resources] == [
        ("v/c=x", "Unhealthy", "hot"),
        ("d/p/z", "Unknown", None),
    ]
