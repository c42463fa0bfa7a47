"""Each mistake of a driver's author is told in one sentence."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import pytest

from dray.driver import ClaimError, Device, Driver, DriverError, Pool, device
from dray.driver.author_errors import check_name, pools_of, prepared_by
from dray.driver.interface import Host


class Node:
    node_name = "n"


class Lamps(Driver):
    name: ClassVar[str] = "lamp.example.com"
    host = cast(Host, Node())
    given: Any = ()

    def devices(self) -> Any:
        return self.given


class Shelves(Lamps):
    def pools(self) -> Any:
        return self.given


class Nameless(Driver):
    pass


def named(value: Any) -> Driver:
    return cast(Driver, type("Lamps", (Driver,), {"name": value})())


def with_devices(kind: type[Lamps], given: Any) -> Lamps:
    driver = kind()
    driver.given = given
    return driver


def test_a_driver_as_it_should_be() -> None:
    check_name(Lamps())
    (pool,) = pools_of(with_devices(Lamps, (device(f"lamp-{n}") for n in range(2)))).values()
    assert [item.name for item in pool.devices] == ["lamp-0", "lamp-1"]
    assert prepared_by(Lamps(), iter(())) == ()


@pytest.mark.parametrize(
    ("driver", "problem"),
    [
        (Nameless(), 'Nameless has no name: set it in the class, as in name = "gpu.example.com"'),
        (named("Lamp_1"), "Lamps.name is 'Lamp_1': it must be a DNS subdomain, as \"gpu.example.com\""),
        (named(7), 'Lamps.name is 7: it must be a DNS subdomain, as "gpu.example.com"'),
    ],
)
def test_names(driver: Driver, problem: str) -> None:
    with pytest.raises(DriverError) as caught:
        check_name(driver)
    assert str(caught.value) == problem


@pytest.mark.parametrize(
    ("kind", "given", "problem"),
    [
        (
            Shelves,
            [device("a")],
            "Shelves.pools() returned a list: return a dict of pools by name, as in "
            "{self.host.node_name: Pool(devices)}, or override devices() instead",
        ),
        (Shelves, {"a": [device("a")]}, "Shelves.pools() has a list as pool 'a': it must be a Pool"),
        (
            Shelves,
            {"a": Pool(cast(tuple[Device, ...], ("a",)))},
            "Shelves has a str in pool 'a': make devices with device(name, ...)",
        ),
        (Lamps, None, "Lamps.devices() returned None: return or yield devices"),
        (Lamps, ["lamp-0"], "Lamps has a str in pool 'n': make devices with device(name, ...)"),
    ],
)
def test_devices(kind: type[Lamps], given: Any, problem: str) -> None:
    with pytest.raises(DriverError) as caught:
        pools_of(with_devices(kind, given))
    assert str(caught.value) == problem


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (
            None,
            "Lamps.prepare() returned None: return or yield one PreparedDevice for each device of the claim, as in "
            "[item.prepared() for item in claim.devices]",
        ),
        ([None], "Lamps.prepare() returned None among the devices: each must be a PreparedDevice"),
    ],
)
def test_prepared_devices(result: Any, problem: str) -> None:
    with pytest.raises(ClaimError) as caught:
        prepared_by(Lamps(), result)
    assert str(caught.value) == problem
