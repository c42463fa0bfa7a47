"""Sessions, health and capacity."""

from __future__ import annotations

import pytest

from dray.node.devices.inventory import ConnectedError, Device, Inventory, Session
from dray.node.devices.responses import device_from_wire, health_of
from dray.rpc.pb.deviceplugin.v1beta1 import api_pb2 as pb

FOO = "vendor.com/foo"


def devices(healthy: str = "", unhealthy: str = "") -> list[Device]:
    return [*(Device(name, True) for name in healthy), *(Device(name, False) for name in unhealthy)]


def listed(healthy: str = "ab", unhealthy: str = "") -> tuple[Inventory, Session]:
    inventory = Inventory(300)
    session = inventory.opened(FOO, "foo.sock")
    inventory.update_devices(FOO, session, devices(healthy, unhealthy))
    return inventory, session


def amounts(inventory: Inventory) -> tuple[int | None, int | None]:
    capacity, allocatable = inventory.amounts()
    return capacity.get(FOO), allocatable.get(FOO)


@pytest.mark.behaviour("DP-16")
def test_capacity_counts_all_allocatable_the_healthy() -> None:
    inventory, _ = listed("ab", "c")
    assert amounts(inventory) == (3, 2)


@pytest.mark.behaviour("DP-08")
def test_a_list_replaces_the_one_before() -> None:
    inventory, session = listed("ab", "c")
    changed = inventory.update_devices(FOO, session, devices("bc", "d"))
    assert changed == {"a", "c", "d"}
    assert amounts(inventory) == (3, 2)
    assert inventory.healthy(FOO) == {"b", "c"}


@pytest.mark.behaviour("DP-09", "DP-10")
def test_the_end_of_the_stream_makes_all_unhealthy_and_the_grace_ends_it() -> None:
    inventory, session = listed("ab", "c")
    assert inventory.closed(FOO, session, 1000) == {"a", "b", "c"}
    assert amounts(inventory) == (3, 0)
    assert inventory.next_expiry == 1300
    assert not inventory.expire(1299.9)
    assert amounts(inventory) == (3, 0)
    assert inventory.expire(1300)
    assert amounts(inventory) == (0, 0)
    assert not inventory.knows(FOO)
    assert inventory.next_expiry is None


@pytest.mark.behaviour("DP-19")
def test_health_is_unknown_without_the_plugin_also_of_what_was_unhealthy() -> None:
    inventory, session = listed("a", "b")
    inventory.closed(FOO, session, 1000)
    assert [health_of(inventory, FOO, name) for name in "ab"] == ["Unknown", "Unknown"]
    again = inventory.opened(FOO, "foo.sock")
    assert inventory.update_devices(FOO, again, devices("a", "b")) == {"a", "b"}
    assert [health_of(inventory, FOO, name) for name in "ab"] == ["Healthy", "Unhealthy"]


@pytest.mark.behaviour("DP-54")
def test_a_device_that_has_vanished_is_unhealthy_unless_the_plugin_has_started_anew() -> None:
    inventory, session = listed("ab")
    assert inventory.update_devices(FOO, session, devices("a")) == {"b"}
    assert [health_of(inventory, FOO, name) for name in "abc"] == ["Healthy", "Unhealthy", "Unknown"]
    assert inventory.update_devices(FOO, session, devices("")) == {"a"}
    inventory.closed(FOO, session, 1000)
    again = inventory.opened(FOO, "foo.sock")
    # Its devices may come one after the other.
    inventory.update_devices(FOO, again, devices(""))
    assert health_of(inventory, FOO, "a") == "Unknown"
    assert inventory.update_devices(FOO, again, devices("b")) == {"b"}
    assert [health_of(inventory, FOO, name) for name in "ab"] == ["Unknown", "Healthy"]


@pytest.mark.behaviour("DP-54")
def test_names_of_vanished_devices_are_not_kept_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dray.node.devices.inventory.NAMES_KEPT", 3)
    inventory, session = listed("abcde")
    inventory.update_devices(FOO, session, devices("e"))
    assert [health_of(inventory, FOO, name) for name in "abcde"] == [*["Unknown"] * 2, *["Unhealthy"] * 2, "Healthy"]


@pytest.mark.behaviour("DP-52")
def test_a_plugin_that_does_not_answer_is_suspended() -> None:
    inventory, session = listed("a", "b")
    assert inventory.suspend(FOO, session, suspended=True) == {"a", "b"}
    assert inventory.suspend(FOO, session, suspended=True) is None
    assert amounts(inventory) == (2, 0)
    assert health_of(inventory, FOO, "b") == "Unknown"
    assert inventory.next_expiry is None
    assert inventory.suspend(FOO, session, suspended=False) == {"a", "b"}
    assert amounts(inventory) == (2, 1)
    # A new session begins anew.
    inventory.suspend(FOO, session, suspended=True)
    again = inventory.opened(FOO, "foo.sock")
    assert inventory.suspend(FOO, session, suspended=False) is None
    inventory.update_devices(FOO, again, devices("a"))
    assert amounts(inventory) == (1, 1)


@pytest.mark.behaviour("DP-10")
def test_without_grace_devices_go_at_once() -> None:
    inventory = Inventory(0)
    session = inventory.opened(FOO, "foo.sock")
    inventory.update_devices(FOO, session, devices("ab"))
    inventory.closed(FOO, session, 1000)
    assert inventory.expire(1000)
    assert amounts(inventory) == (0, 0)


@pytest.mark.behaviour("DP-11")
def test_registering_again_within_the_grace() -> None:
    inventory, session = listed()
    inventory.closed(FOO, session, 1000)
    again = inventory.opened(FOO, "other.sock")
    assert amounts(inventory) == (2, 0)
    assert not inventory.expire(1299)
    inventory.update_devices(FOO, again, devices("ab"))
    assert not inventory.expire(9999)
    assert amounts(inventory) == (2, 2)


@pytest.mark.behaviour("DP-05", "N-62")
def test_the_same_endpoint_is_refused_while_it_is_connected() -> None:
    inventory, session = listed()
    with pytest.raises(ConnectedError, match=r"^device plugin already connected: foo\.sock$"):
        inventory.opened(FOO, "foo.sock")
    inventory.closed(FOO, session, 0)
    inventory.opened(FOO, "foo.sock")


@pytest.mark.behaviour("DP-05", "DP-56", "N-62")
def test_a_report_changes_only_the_devices_of_its_plugin() -> None:
    inventory, old = listed("ab")
    new = inventory.opened(FOO, "other.sock")
    assert amounts(inventory) == (2, 2)
    # An empty list of the second says nothing about those of the first.
    assert inventory.update_devices(FOO, new, devices("")) == frozenset()
    assert amounts(inventory) == (2, 2)
    assert inventory.update_devices(FOO, new, devices("c", "d")) == {"c", "d"}
    assert inventory.update_devices(FOO, old, devices("a")) == {"b"}
    assert amounts(inventory) == (3, 2)
    assert [inventory.endpoint_of(FOO, name) for name in "abcd"] == ["foo.sock", None, "other.sock", "other.sock"]
    # The first one goes, and only its device with it.
    assert inventory.closed(FOO, old, 1000) == {"a", "b"}
    assert [health_of(inventory, FOO, name) for name in "abcd"] == ["Unknown", "Unknown", "Healthy", "Unhealthy"]
    assert (amounts(inventory), inventory.next_expiry) == ((3, 1), 1300)
    assert inventory.expire(1300)
    assert (amounts(inventory), inventory.next_expiry) == ((2, 1), None)


@pytest.mark.behaviour("DP-57")
def test_a_device_of_two_plugins_belongs_to_the_first_until_it_ends() -> None:
    inventory, old = listed("ab")
    new = inventory.opened(FOO, "other.sock")
    assert inventory.update_devices(FOO, new, devices("c", "a")) == {"c"}
    assert inventory.listed_by_others(FOO, new) == {"a": "foo.sock"}
    assert inventory.is_healthy(FOO, "a")
    assert inventory.endpoint_of(FOO, "a") == "foo.sock"
    # It gives the device up, or ends.
    assert inventory.update_devices(FOO, old, devices("b")) == {"a"}
    assert inventory.endpoint_of(FOO, "a") == "other.sock"
    assert inventory.update_devices(FOO, old, devices("ab")) == frozenset()
    assert inventory.endpoint_of(FOO, "a") == "other.sock"
    assert inventory.listed_by_others(FOO, old) == {"a": "other.sock"}
    inventory.closed(FOO, new, 0)
    assert inventory.endpoint_of(FOO, "a") == "foo.sock"


@pytest.mark.behaviour("DP-17")
def test_a_device_that_is_listed_twice_counts_once_and_is_healthy_only_if_both_are() -> None:
    inventory, session = listed("ab")
    inventory.update_devices(
        FOO, session, [Device("a", False), Device("a", True), Device("b", True), Device("b", True)]
    )
    assert amounts(inventory) == (2, 1)
    assert inventory.healthy(FOO) == {"b"}


@pytest.mark.behaviour("DP-56")
def test_plugins_that_always_come_with_a_new_socket_are_not_kept_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dray.node.devices.inventory.ENDED_KEPT", 2)
    inventory = Inventory(300)
    for turn in range(9):
        session = inventory.opened(FOO, f"{turn}.sock")
        inventory.update_devices(FOO, session, devices(str(turn)))
        inventory.closed(FOO, session, turn)
    assert sorted(inventory.devices(FOO)) == ["7", "8"]


@pytest.mark.behaviour("N-63")
@pytest.mark.parametrize("first", ["old", "new"])
def test_devices_are_unhealthy_only_when_the_last_plugin_ends(first: str) -> None:
    inventory, old = listed("ab")
    new = inventory.opened(FOO, "other.sock")
    inventory.update_devices(FOO, new, devices("ab"))
    order = [old, new] if first == "old" else [new, old]
    assert inventory.closed(FOO, order[0], 10) == frozenset()
    assert (amounts(inventory), inventory.next_expiry) == ((2, 2), None)
    assert inventory.closed(FOO, order[0], 11) is None
    assert inventory.update_devices(FOO, order[0], devices("xyz")) is None
    assert inventory.closed(FOO, order[1], 20) == {"a", "b"}
    assert (amounts(inventory), inventory.next_expiry) == ((2, 0), 320)


@pytest.mark.behaviour("N-63")
def test_one_plugin_that_answers_is_enough() -> None:
    inventory, old = listed("ab")
    new = inventory.opened(FOO, "other.sock")
    assert inventory.suspend(FOO, new, suspended=True) == frozenset()
    assert amounts(inventory) == (2, 2)
    # The other one goes, too, and the one that hangs is left; a new process may take its socket.
    assert inventory.closed(FOO, old, 0) == {"a", "b"}
    assert amounts(inventory) == (2, 0)
    again = inventory.opened(FOO, "other.sock")
    inventory.update_devices(FOO, again, devices("ab"))
    assert inventory.closed(FOO, new, 0) is None
    assert amounts(inventory) == (2, 2)


@pytest.mark.behaviour("N-65")
def test_the_same_id_of_another_resource_is_left_alone() -> None:
    inventory, session = listed("ab")
    other = inventory.opened("vendor.com/bar", "bar.sock")
    inventory.update_devices("vendor.com/bar", other, devices("ab"))
    assert inventory.update_devices(FOO, session, devices("a", "b")) == {"b"}
    assert inventory.is_healthy("vendor.com/bar", "b")


@pytest.mark.behaviour("DP-45")
def test_after_a_restart_there_is_nothing_until_the_plugin_is_back() -> None:
    inventory = Inventory(300)
    inventory.restore([FOO], 1000)
    assert inventory.knows(FOO)
    assert amounts(inventory) == (0, 0)
    assert inventory.next_expiry == 1300


@pytest.mark.behaviour("DP-17")
@pytest.mark.parametrize(
    ("health", "healthy"), [("Healthy", True), ("Unhealthy", False), ("", False), ("healthy", False), ("x", False)]
)
def test_health_words(health: str, healthy: bool) -> None:
    assert device_from_wire(pb.Device(id="a", health=health)) == Device("a", healthy)


@pytest.mark.behaviour("DP-17")
def test_topology_from_the_wire() -> None:
    nodes = [pb.NUMANode(id=1), pb.NUMANode(id=0), pb.NUMANode(id=1)]
    device = device_from_wire(pb.Device(id="a", health="Healthy", topology=pb.TopologyInfo(nodes=nodes)))
    assert device == Device("a", True, (1, 0))
    assert device.mask == 0b11


@pytest.mark.behaviour("DP-18")
def test_health_in_statuses() -> None:
    inventory, session = listed("a", "b")
    assert [health_of(inventory, FOO, name) for name in "abc"] == ["Healthy", "Unhealthy", "Unknown"]
    inventory.closed(FOO, session, 0)
    assert [health_of(inventory, FOO, name) for name in "ab"] == ["Unknown", "Unknown"]
