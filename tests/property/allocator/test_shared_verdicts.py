"""Contents of which the selectors read the same share a verdict, which is that of an evaluation of its own."""

from __future__ import annotations

from typing import Any

from hypothesis import event, example, given
from hypothesis import strategies as st

from dray.allocator.content import Content
from dray.allocator.selection import SelectorGroup
from dray.api.codec import from_document
from dray.api.types.resource_v1 import Device

DRIVER = "gpu.example.com"
OWN = f"device.attributes['{DRIVER}']"
# No valid name has two slashes; the domain ends at the first one.
SLASHES = "other.example.com/more/model"
WITH_SLASH = "device.attributes['other.example.com']['more/model'] == 'a100'"
EXPRESSIONS = (
    "true",
    f"device.driver == '{DRIVER}'",
    "device.allowMultipleAllocations",
    f"{OWN}.model == 'a100'",
    f"has({OWN}.model) && {OWN}.size > 1",
    f"{OWN}.?model.orValue('') == 'a100'",
    "device.attributes['other.example.com'].model == 'a100'",
    f"{OWN}.firmware.compareTo(semver('1.2.0')) >= 0",
    f"'uuid' in {OWN}",
    f"device.attributes[?'{DRIVER}'].?model.orValue('') == 'a100'",
    f"cel.bind(own, {OWN}, own.model == 'a100' && own.size > 1)",
    f"['model', 'uuid'].all(name, name in {OWN})",
    f"{OWN}.exists(name, name == 'uuid')",
    f"size({OWN}) > 1",
    "'other.example.com' in device.attributes",
    "device.attributes[device.driver].model == 'a100'",
    WITH_SLASH,
    f"device.capacity['{DRIVER}'].memory.compareTo(quantity('2Gi')) >= 0",
    "not an expression",
)
NAMES = ("model", "size", "uuid", "firmware", f"{DRIVER}/model", "other.example.com/model", SLASHES)
VALUES: tuple[dict[str, Any], ...] = (
    {"string": "a100"},
    {"string": "b200"},
    {"int": 1},
    {"int": 2},
    {"bool": True},
    {"version": "1.2.3"},
    {"version": "no version"},
    {"strings": ["a100"]},
    {"versions": ["no version"], "string": "a100"},
    {},
)


@st.composite
def contents(draw: st.DrawFn) -> Content:
    document: dict[str, Any] = {
        "name": "device",
        "attributes": draw(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VALUES), max_size=3)),
        "capacity": draw(st.sampled_from(({}, {"memory": {"value": "1Gi"}}, {"memory": {"value": "2Gi"}}))),
        "allowMultipleAllocations": draw(st.booleans()),
    }
    return Content(draw(st.sampled_from((DRIVER, "other.example.com"))), from_document(Device, document))


def content(**attributes: dict[str, Any]) -> Content:
    return Content(DRIVER, from_document(Device, {"name": "device", "attributes": attributes}))


@given(
    st.lists(st.sampled_from(EXPRESSIONS), max_size=2),
    st.lists(st.sampled_from(EXPRESSIONS), max_size=2),
    st.lists(contents(), max_size=8),
)
@example(["true"], [], [content(uuid={"string": "1"}), content(uuid={"version": "no version"})])
@example(["true"], [], [content(uuid={"string": "1"}), content(uuid={"versions": ["no version"], "string": "1"})])
@example([EXPRESSIONS[3]], [], [content(model={"string": "a100"}), content(model={"string": "b200"})])
@example([EXPRESSIONS[3]], [], [content(model={"string": "a100"}, uuid={"int": 1}), content(uuid={"int": 1})])
@example([WITH_SLASH], [], [content(), content(**{SLASHES: VALUES[0]})])
def test_a_shared_verdict_is_the_one_of_the_content(
    of_class: list[str], of_request: list[str], judged: list[Content]
) -> None:
    group = SelectorGroup(tuple(of_class), tuple(of_request))
    for each in judged:
        verdict = group.verdict(each)
        event(f"verdict: {type(verdict).__name__}")
        assert verdict == SelectorGroup(tuple(of_class), tuple(of_request))._evaluate(each)


def test_devices_that_differ_in_serial_numbers_are_evaluated_once() -> None:
    group = SelectorGroup((EXPRESSIONS[3],), ())
    for number in range(5):
        assert group.verdict(content(model={"string": "a100"}, uuid={"string": str(number)})) is None
    assert len(group._shared_verdicts) == 1
