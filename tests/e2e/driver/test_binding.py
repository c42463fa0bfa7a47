"""Binding conditions of a driver of the SDK, as the scheduler waits for them."""

from __future__ import annotations

from typing import Any

import pytest

from dray.driver import Claim, ClaimError
from tests.e2e.driver.cluster import Cluster, Node, driver_running, result, until
from tests.e2e.driver.test_device_status import devices
from tests.e2e.driver.test_sdk import TestDriver

CONDITIONS: dict[str, Any] = {"bindingConditions": ["Attached"], "bindingFailureConditions": ["Failed"]}


class FabricDriver(TestDriver):
    def bind(self, claim: Claim) -> None:
        self.notes.append(f"bind {claim.key.name} {','.join(item.name for item in claim.devices)}")
        if self.fail:
            raise ClaimError(self.fail)


@pytest.mark.behaviour("SP-107")
@pytest.mark.parametrize(("failure", "expected"), [("", "Attached"), ("no port left", "Failed")])
async def test_conditions_follow_what_bind_does(cluster: Cluster, node: Node, failure: str, expected: str) -> None:
    driver = FabricDriver()
    driver.fail = failure
    async with driver_running(driver, node):
        await cluster.claim("plain", result("x"))
        # Of another node's pool, and without conditions: neither is this driver's to bind.
        await cluster.claim("a", result("y", **CONDITIONS), result("z", pool="other", **CONDITIONS), result("w"))

        async def is_reported() -> bool:
            return bool(await devices(cluster))

        await until(is_reported)
        (entry,) = await devices(cluster)
        (condition,) = entry["conditions"]
        assert (entry["device"], condition["type"], condition["status"]) == ("y", expected, "True")
        assert condition["message"] == failure
        assert await devices(cluster, "plain") == []
        assert driver.notes == ["bind a y"]
