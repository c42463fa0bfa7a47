"""Which attributes a selector depends on."""

from __future__ import annotations

import pytest

from dray.cel.attribute_reads import attributes_read
from dray.cel.environments import compile_device_selector

DOMAIN = "device.attributes['gpu.example.com']"


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("true", set()),
        ("device.driver == 'a' && device.allowMultipleAllocations", set()),
        ("device.capacity['a'].memory.compareTo(quantity('1Gi')) >= 0", set()),
        (f"{DOMAIN}.model == 'x'", {"model"}),
        (f"{DOMAIN}['model'] == 'x' || {DOMAIN}.size > 3", {"model", "size"}),
        (f"has({DOMAIN}.model)", {"model"}),
        (f"{DOMAIN}.?model.orValue('') == 'x'", {"model"}),
        (f"{DOMAIN}[?'model'].hasValue()", {"model"}),
        (f"{DOMAIN}.models.exists(item, item == 'x')", {"models"}),
        (f"cel.bind(own, {DOMAIN}, own.model == 'x' && has(own.size))", {"model", "size"}),
        (f"cel.bind(own, {DOMAIN}, cel.bind(other, own, other.model == 'x'))", {"model"}),
    ],
)
def test_attributes_of_selectors(expression: str, expected: set[str]) -> None:
    assert attributes_read(compile_device_selector(expression).program.root) == expected


@pytest.mark.parametrize(
    "expression",
    [
        "'gpu.example.com' in device.attributes",
        "device.attributes[?'gpu.example.com'].?model.orValue('') == 'x'",
        "device.attributes[device.driver].model == 'x'",
        "size(device.attributes) > 1",
        f"'uuid' in {DOMAIN}",
        f"{DOMAIN}.exists(name, name == 'uuid')",
        f"{DOMAIN}[device.driver] == 'x'",
        f"cel.bind(own, {DOMAIN}, size(own) > 1)",
        "cel.bind(everything, device, everything.attributes['gpu.example.com'].model == 'x')",
    ],
)
def test_selectors_that_may_depend_on_any_attribute(expression: str) -> None:
    assert attributes_read(compile_device_selector(expression).program.root) is None
