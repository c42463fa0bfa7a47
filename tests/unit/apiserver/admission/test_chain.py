"""The admission chain: order, phases, participation, and what happens to reservations of a refused write."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from dray.api.document import GroupResource
from dray.api.errors import ForbiddenError
from dray.apiserver.admission.chain import AdmissionChain, PluginNameError, enabled_plugins
from dray.apiserver.admission.order import PLUGIN_ORDER
from dray.apiserver.admission.plugin import AdmissionAttributes, AdmissionPlugin, Operation, Undo
from dray.apiserver.options import WriteOptions
from dray.apiserver.request import UserInfo

PODS = GroupResource("", "pods")
NODES = GroupResource("", "nodes")
ALICE = UserInfo("alice")


def attributes(
    resource: GroupResource = PODS, operation: Operation = Operation.CREATE, user: UserInfo = ALICE
) -> AdmissionAttributes:
    return AdmissionAttributes(
        operation,
        user,
        "create",
        resource,
        "v1",
        "",
        "team",
        "p",
        {"metadata": {}},
        None,
        WriteOptions(),
        [],
    )


class Recorded(AdmissionPlugin):
    """Records its calls; awaits in both phases, as a webhook would."""

    def __init__(
        self, name: str, log: list[str], resource: GroupResource | None = None, *, refuses: bool = False
    ) -> None:
        self.name = name  # type: ignore[misc]
        self._log = log
        self._resource = resource
        self._refuses = refuses
        self.handles_calls = 0

    def handles(self, resource: GroupResource, subresource: str, operation: Operation) -> bool:
        self.handles_calls += 1
        return self._resource in (None, resource)

    async def admit(self, attributes: AdmissionAttributes) -> None:
        await asyncio.sleep(0)
        self._log.append(f"admit {self.name}")

    async def validate(self, attributes: AdmissionAttributes) -> Undo | None:
        await asyncio.sleep(0)
        if self._refuses:
            raise ForbiddenError(PODS, "p", "refused")
        self._log.append(f"validate {self.name}")
        return self._undo

    async def _undo(self) -> None:
        self._log.append(f"undo {self.name}")


class ValidatesOnly(AdmissionPlugin):
    """Has no mutating phase."""

    name = "NodeRestriction"

    def __init__(self, validate: Callable[[], Awaitable[None]]) -> None:
        self._validate = validate

    def handles(self, resource: GroupResource, subresource: str, operation: Operation) -> bool:
        return True

    async def validate(self, attributes: AdmissionAttributes) -> None:
        await self._validate()


async def test_plugins_run_in_the_order_of_kube_apiserver_whatever_the_order_they_are_given_in() -> None:
    log: list[str] = []
    chain = AdmissionChain([Recorded(name, log) for name in ("ResourceQuota", "Priority", "NamespaceLifecycle")])
    await chain.admit(attributes())
    assert log == ["admit NamespaceLifecycle", "admit Priority", "admit ResourceQuota"]


async def test_all_of_the_mutating_phase_runs_before_the_validating_phase() -> None:
    log: list[str] = []

    async def validate() -> None:
        log.append("validate NodeRestriction")

    chain = AdmissionChain([Recorded("ResourceQuota", log), ValidatesOnly(validate)])
    await chain.admit(attributes())
    await chain.validate(attributes())
    assert log == ["admit ResourceQuota", "validate NodeRestriction", "validate ResourceQuota"]


async def test_a_plugin_takes_part_only_in_what_it_handles_and_is_asked_once() -> None:
    log: list[str] = []
    plugin = Recorded("Priority", log, PODS)
    chain = AdmissionChain([plugin])
    for _ in range(3):
        await chain.admit(attributes(NODES))
        await chain.admit(attributes(PODS))
    assert log == ["admit Priority"] * 3
    assert plugin.handles_calls == 2


@pytest.mark.parametrize(("groups", "expected"), [(("system:nodes",), 1), (("system:masters",), 0), ((), 0)])
async def test_a_plugin_about_nodes_validates_their_writes_alone(groups: tuple[str, ...], expected: int) -> None:
    log: list[str] = []

    async def validate() -> None:
        log.append("validate NodeRestriction")

    class AboutNodes(ValidatesOnly):
        validates_nodes_only = True

    chain = AdmissionChain([AboutNodes(validate)])
    await chain.validate(attributes(user=UserInfo("system:node:n1", groups=groups)))
    assert len(log) == expected


async def test_a_refusal_undoes_what_earlier_plugins_reserved() -> None:
    log: list[str] = []
    chain = AdmissionChain([Recorded("Priority", log), Recorded("ResourceQuota", log, refuses=True)])
    with pytest.raises(ForbiddenError):
        await chain.validate(attributes())
    assert log == ["validate Priority", "undo Priority"]


async def test_undoing_a_write_goes_through_the_plugins_in_reverse() -> None:
    log: list[str] = []
    chain = AdmissionChain([Recorded("Priority", log), Recorded("ResourceQuota", log)])
    undo = await chain.validate(attributes())
    log.clear()
    await undo()
    assert log == ["undo ResourceQuota", "undo Priority"]


def test_disabled_plugins_are_not_in_the_chain() -> None:
    log: list[str] = []
    plugins = [Recorded(name, log) for name in PLUGIN_ORDER]
    chain = AdmissionChain(plugins, enabled_plugins(disable=("ServiceAccount", "ResourceQuota")))
    assert [plugin.name for plugin in chain.plugins] == [
        name for name in PLUGIN_ORDER if name not in ("ServiceAccount", "ResourceQuota")
    ]


def test_every_plugin_can_be_disabled_and_enabled_by_name() -> None:
    assert enabled_plugins(disable=PLUGIN_ORDER) == frozenset()
    assert enabled_plugins(enable=PLUGIN_ORDER) == frozenset(PLUGIN_ORDER)


@pytest.mark.parametrize("flag", ["enable", "disable"])
def test_an_unknown_name_is_refused(flag: str) -> None:
    with pytest.raises(PluginNameError, match=f'{flag}-admission-plugins plugin "Mystery" is unknown'):
        enabled_plugins(**{flag: ("Mystery",)})


def test_a_name_cannot_be_enabled_and_disabled() -> None:
    with pytest.raises(PluginNameError, match="Priority in enable-admission-plugins and disable-admission-plugins"):
        enabled_plugins(enable=("Priority",), disable=("Priority",))
