"""Compares Dray's decisions with kube-scheduler's: one Pod after the other, each on the state that kube-scheduler left.

Equal are: a node with the same score, the devices there, the message, and the victims. What differs on purpose has a
name, which stands in docs/differences.md; a difference without a name is a defect of one of the two.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from dray.api.document import Document
from dray.framework.evaluation import NodeScore
from dray.sim.replica.virtual_time import run_virtually
from tests.differential.cases import Case, Step
from tests.differential.driver import SCHEDULER_ERROR, Answer, Driver
from tests.differential.own_scheduler import OwnWorld, own_world

# In front of a detail of ours.
_DETAILED: Final = "cannot allocate all claims ("
# Nodes are filtered in parallel, so that the first error may be about any of them.
_SELECTOR_ERROR: Final = "CEL runtime error"
_DEVICE: Final = re.compile(r"device \S+/\S+/\S+?(?=:| because|$)")


@dataclass(frozen=True, slots=True)
class Difference:
    """A Pod about which the two decided differently."""

    pod: str
    kube: Answer
    own: Answer
    # Named in docs/differences.md; empty for one that nobody has explained.
    name: str
    # How our scheduler rates the nodes.
    scores: str = ""

    def __str__(self) -> str:
        return f"{self.pod} [{self.name or 'unexplained'}]\n  kube: {self.kube}\n  own:  {self.own}\n  {self.scores}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs, and about how many Pods the two were compared."""

    pods: int
    differences: tuple[Difference, ...]

    @property
    def unexplained(self) -> list[str]:
        """Return the differences without a name."""
        return [str(item) for item in self.differences if not item.name]


# By Pod, node and plugin; scores of one plugin may differ by a constant, which changes no decision.
Scores: TypeAlias = Mapping[str, Mapping[str, Mapping[str, int]]]


def compare_case(case: Case, answers: Sequence[Answer], scores: Scores | None = None) -> Comparison:
    """Compare the decisions, and kube-scheduler's scores if they are given.

    After a difference that cannot be undone, the rest of the case is not compared.
    """
    return run_virtually(_compare(case, answers, scores or {}))


async def _compare(case: Case, answers: Sequence[Answer], scores: Scores) -> Comparison:
    found: list[Difference] = []
    pods = 0
    remaining = iter(answers)
    claims = {item["metadata"]["name"]: item for item in case.objects if item["kind"] == "ResourceClaim"}
    async with own_world() as world:
        driver = Driver(world)
        await driver.apply(case.objects)
        for step in case.steps:
            if step.action != "pod":
                await driver.change(step)
                continue
            kube = next(remaining)
            own = await driver.place(step)
            pods += 1
            name, entries = step.objects[-1]["metadata"]["name"], step.objects[-1]["spec"].get("resourceClaims", ())
            used = {entry.get("resourceClaimName") for entry in entries}
            objects = (*step.objects, *(claim for key, claim in claims.items() if key in used))
            if same(kube, own):
                if not own.victims:
                    found += _score_differences(objects, own, world.scores(name), scores.get(name, {}))
                continue
            difference, follows = await _explain(world, driver, step, objects, kube, own)
            if difference is not None:
                found.append(difference)
            if not follows:
                break
    return Comparison(pods, tuple(found))


def _score_differences(
    objects: Sequence[Document], own: Answer, scores: Sequence[NodeScore], kube: Mapping[str, Mapping[str, int]]
) -> Iterator[Difference]:
    """Yield the plugins that prefer other nodes."""
    if not scores or not kube:
        return
    pod = objects_of_kind(objects, "Pod")[0]
    for plugin in sorted({name for of_node in kube.values() for name in of_node}):
        by_node = {score.node: (kube[score.node].get(plugin, 0), score.by_plugin.get(plugin, 0)) for score in scores}
        if len({theirs - ours for theirs, ours in by_node.values()}) > 1:
            name = next((item for item, named in NAMED.items() if named.scores(plugin, objects)), "")
            yield Difference(pod["metadata"]["name"], own, own, name, f"{plugin}, kube-scheduler and own: {by_node}")


async def _explain(
    world: OwnWorld, driver: Driver, step: Step, objects: Sequence[Document], kube: Answer, own: Answer
) -> tuple[Difference | None, bool]:
    """Return the difference, if it is one, and whether the cluster is now as kube-scheduler left it."""
    name = step.objects[-1]["metadata"]["name"]
    scores = world.scores(name)
    by_node = {score.node: score.total for score in scores}
    described = ", ".join(f"{score.node} {score.total} {score.by_plugin}" for score in scores)
    if not own.node or not kube.node or own.victims or kube.victims:
        follows = own.node == kube.node and own.victims == kube.victims and own.devices == kube.devices
        if not kube.node and not own.victims and not kube.victims:
            await driver.remove_pod(name)
            follows = True
        return Difference(name, kube, own, name_of(objects, kube, own), described), follows
    is_tie = own.node == kube.node or (by_node and by_node.get(kube.node) == by_node.get(own.node))
    await driver.remove_pod(name)
    pinned = await driver.place(step, on=kube.node)
    if is_tie and same(replace(kube, message=""), replace(pinned, message="")):
        return None, True
    return Difference(name, kube, pinned if is_tie else own, name_of(objects, kube, own), described), same(kube, pinned)


def objects_of_kind(objects: Sequence[Document], kind: str) -> list[Document]:
    """Return those of a kind."""
    return [item for item in objects if item["kind"] == kind]


def same(kube: Answer, own: Answer) -> bool:
    """Return whether two answers are equal, except for the details of our messages."""
    return replace(own, message=_comparable(own.message)) == replace(kube, message=_comparable(kube.message))


def _comparable(message: str) -> str:
    """Return the message without our details, and without the device at which a selector failed first."""
    return _DEVICE.sub("device", without_details(message))


def without_details(message: str) -> str:
    """Return the message without what follows Kubernetes' text in brackets, which may contain others."""
    start = message.find(_DETAILED)
    while start >= 0:
        end = start = start + len(_DETAILED) - 2
        depth = 0
        while end < len(message):
            depth += {"(": 1, ")": -1}.get(message[end], 0)
            end += 1
            if depth == 0 and message[end - 1] == ")":
                break
        message = message[:start] + message[end:]
        start = message.find(_DETAILED)
    return message


@dataclass(frozen=True, slots=True)
class Named:
    """A documented difference: words of its line in docs/differences.md, and how to recognize it."""

    line: str
    applies: Callable[[Sequence[Document], Answer, Answer], bool]
    # Whether it explains scores of a plugin.
    scores: Callable[[str, Sequence[Document]], bool] = lambda _plugin, _objects: False


def _error(text: str) -> Callable[[Sequence[Document], Answer, Answer], bool]:
    """Recognize an attempt of kube-scheduler that ends with an error, where ours does not."""
    return lambda _, kube, own: _is_error(kube) and text in kube.message and not _is_error(own)


def _is_error(answer: Answer) -> bool:
    return answer.message.startswith(SCHEDULER_ERROR)


def _with_fewer_errors(_objects: Sequence[Document], kube: Answer, own: Answer) -> bool:
    """Recognize errors of selectors, of an attempt or of nodes in a dry run of preemption, that ours does not have."""
    return kube.message.count(_SELECTOR_ERROR) > own.message.count(_SELECTOR_ERROR)


def _with_alternatives(objects: Sequence[Document], kube: Answer, own: Answer) -> bool:
    """Recognize another node for a Pod with a prioritized list, where one alternative scores more than another."""
    return _is_elsewhere(kube, own) and _has_alternatives(objects)


def _has_alternatives(objects: Sequence[Document]) -> bool:
    return any('"firstAvailable"' in json.dumps(item) for item in objects)


def _with_pod_level_resources(objects: Sequence[Document], kube: Answer, own: Answer) -> bool:
    """Recognize another node for a Pod with resources of its own, besides those of its containers."""
    return _is_elsewhere(kube, own) and _has_pod_level_resources(objects)


def _has_pod_level_resources(objects: Sequence[Document]) -> bool:
    return any(pod["spec"].get("resources") for pod in objects_of_kind(objects, "Pod"))


def _is_elsewhere(kube: Answer, own: Answer) -> bool:
    return bool(kube.node and own.node and kube.node != own.node and not kube.victims and not own.victims)


def _with_admin_access(objects: Sequence[Document], _kube: Answer, _own: Answer) -> bool:
    """Recognize a Pod of an administrator, whose other requests or devices in use make a difference."""
    return any('"adminAccess": true' in json.dumps(item) for item in objects)


def _with_a_claim_named_twice(objects: Sequence[Document], _kube: Answer, _own: Answer) -> bool:
    pods = objects_of_kind(objects, "Pod")
    names = [entry.get("resourceClaimName") for pod in pods for entry in pod["spec"].get("resourceClaims", ())]
    return max(Counter(filter(None, names)).values(), default=0) > 1


NAMED: Final = {
    "an undefined All": Named("`All` with a pool that is being updated or invalid", _error("asks for all devices")),
    "a large All": Named("`All` with more than 32 devices on a node", _error("exceeds the claim limit")),
    "a constrained All": Named(
        "`All` with a constraint that cannot be satisfied", _error("because a claim constraint")
    ),
    "an unreported selector error": Named(
        "a selector error on a device that cannot help is not reported", _with_fewer_errors
    ),
    "the first of several errors": Named(
        "Kubernetes reports any of them", lambda _, kube, own: _is_error(kube) and _is_error(own)
    ),
    "normalized scores of alternatives": Named(
        "normalized scores (4816)",
        _with_alternatives,
        lambda plugin, objects: plugin == "DynamicResources" and _has_alternatives(objects),
    ),
    "scores with Pod-level resources": Named(
        "scores a Pod by its Pod-level requests",
        _with_pod_level_resources,
        lambda plugin, objects: plugin == "NodeResourcesFit" and _has_pod_level_resources(objects),
    ),
    "a claim named twice": Named("A Pod that names a claim twice", _with_a_claim_named_twice),
    "admin access": Named("admin access uses no device, counter or capacity", _with_admin_access),
}


def name_of(objects: Sequence[Document], kube: Answer, own: Answer) -> str:
    """Return the name of the documented difference in a Pod with these objects, or nothing."""
    return next((name for name, named in NAMED.items() if named.applies(objects, kube, own)), "")
