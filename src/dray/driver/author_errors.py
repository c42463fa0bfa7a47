"""Mistakes in an author's driver, each reported in one sentence. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dray.api.names import dns1123_subdomain
from dray.api.types.resource_v1 import Device
from dray.driver.claims import ClaimError, PreparedDevice
from dray.driver.devices import Pool
from dray.driver.interface import Driver, DriverError


def check_name(driver: Driver) -> None:
    """Raise `DriverError` if the driver has no valid name."""
    kind, name = type(driver).__name__, getattr(driver, "name", "")
    if not name:
        raise DriverError(f'{kind} has no name: set it in the class, as in name = "gpu.example.com"')
    if not isinstance(name, str) or dns1123_subdomain(name):
        raise DriverError(f'{kind}.name is {name!r}: it must be a DNS subdomain, as "gpu.example.com"')


def pools_of(driver: Driver) -> Mapping[str, Pool]:
    """Return the driver's pools; raise `DriverError` if they are none."""
    kind, pools = type(driver).__name__, driver.pools()
    if not isinstance(pools, Mapping):
        raise DriverError(
            f"{kind}.pools() returned {_what(pools)}: return a dict of pools by name, as in "
            "{self.host.node_name: Pool(devices)}, or override devices() instead"
        )
    for name, pool in pools.items():
        if not isinstance(pool, Pool):
            raise DriverError(f"{kind}.pools() has {_what(pool)} as pool {name!r}: it must be a Pool")
        for item in pool.devices:
            if not isinstance(item, Device):
                raise DriverError(f"{kind} has {_what(item)} in pool {name!r}: make devices with device(name, ...)")
    return pools


def prepared_by(driver: Driver, result: Any) -> Iterable[PreparedDevice]:
    """Return what `prepare` returned; raise `ClaimError` if it is no list of prepared devices."""
    method = f"{type(driver).__name__}.prepare()"
    if not isinstance(result, Iterable):
        raise ClaimError(
            f"{method} returned {_what(result)}: return or yield one PreparedDevice for each device of the claim, "
            "as in [item.prepared() for item in claim.devices]"
        )
    prepared = tuple(result)
    for item in prepared:
        if not isinstance(item, PreparedDevice):
            raise ClaimError(f"{method} returned {_what(item)} among the devices: each must be a PreparedDevice")
    return prepared


def _what(value: object) -> str:
    """Return a value in few words: None, or its type."""
    return "None" if value is None else f"a {type(value).__name__}"
