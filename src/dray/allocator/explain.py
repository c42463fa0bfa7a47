"""Explains why claims do not fit on a node: the first reason per request and device, and a summary for conditions.

An explanation is far more expensive than a search, and is computed on demand only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from dray.allocator.bits import indices
from dray.allocator.capacity import fits, offers, request_error, share
from dray.allocator.choices import Choice, Chooser, RequestChoices
from dray.allocator.compatibility import conflicting_set
from dray.allocator.derived_attributes import DerivedFailure
from dray.allocator.device_reasons import (
    DerivedAttributeFailed,
    DeviceReason,
    FeatureDisabled,
    Incompatible,
    InIncompletePool,
    InInvalidPool,
    InUse,
    LacksCapacity,
    LacksCounter,
    NodeLacksFeature,
    NotReached,
    SelectorFailed,
    SelectorFalse,
    Tainted,
    Taken,
    ViolatesConstraint,
    amount_text,
)
from dray.allocator.errors import AllocatorError, SearchStoppedError
from dray.allocator.inventory import OPTIONAL_NODE_OPERATIONS, Inventory, can_skip_operations
from dray.allocator.plan import DEVICES_MAX, Alternative, Plan, PlannedRequest
from dray.allocator.pools import CounterName, Pool, PoolDevice, usable
from dray.allocator.search import Limits, Search
from dray.allocator.segments import TaintRules
from dray.allocator.selection import SelectorFailure
from dray.allocator.taints import intolerable
from dray.allocator.view import NodeView
from dray.api.quantity import Quantity

if TYPE_CHECKING:
    from dray.allocator.allocations import AllocatedDevices

# Search steps spent on an explanation.
_STEPS_MAX: Final = 10_000
# The name of a claim that exists in memory alone: its devices are in use, and nobody knows which ones they are. What it
# lacks is told of the requests that were met before it.
HELD_BACK: Final = "<held by a device plugin>"
_NOT_ALL: Final = "each request can be met, but not all of them together"


@dataclass(frozen=True, slots=True)
class RequestExplanation:
    """The devices for one alternative of one request."""

    claim: str
    request: str
    needed: int
    # Devices it can use, alone or after the devices chosen for earlier requests.
    usable: int
    reasons: tuple[DeviceReason, ...]
    # A problem of the request as a whole.
    note: str | None = None

    @property
    def satisfiable(self) -> bool:
        """Return whether there are enough devices."""
        return self.note is None and self.usable >= self.needed

    @property
    def summary(self) -> str:
        """Return a one-line summary."""
        head = f'request "{self.request}": '
        if self.note is not None:
            return head + self.note
        total = self.usable + len(self.reasons)
        if not total:
            return head + "no devices"
        counted = Counter(reason.brief for reason in self.reasons)
        parts = [f"{count} {brief}" for brief, count in counted.most_common()]
        if self.usable:
            parts.append(f"{self.usable} usable but {self.needed} needed")
        return f"{head}{total} {'device' if total == 1 else 'devices'}: {', '.join(parts)}"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why the claims do not fit on the node, or that they do."""

    node: str
    fits: bool
    requests: tuple[RequestExplanation, ...]
    summary: str


class Explainer:
    """Explains one plan on one node."""

    def __init__(self, plan: Plan, view: NodeView, inventory: Inventory, allocations: AllocatedDevices) -> None:
        self._plan = plan
        self._view = view
        self._inventory = inventory
        self._allocations = allocations
        self._rules: TaintRules = inventory.taint_rules
        self._blocked = view.blocked(allocations)
        self._unseen = tuple(self._unseen_devices())

    def explain(self) -> Explanation:
        """Return why the claims do not fit, or that they do."""
        chooser = Chooser(self._plan, self._view, self._allocations, self._rules)
        choices: list[RequestChoices] = []
        explained: list[RequestExplanation] = []
        culprits: list[RequestExplanation] = []
        for request in self._plan.requests:
            try:
                found = chooser.choose(request)
            except AllocatorError as error:
                return self._explanation(explained, [], str(error))
            choices.append(found)
            own = [self._static(request, choice) for choice in found.choices]
            explained += own
            if not found.feasible and not culprits:
                culprits = own
        if culprits:
            return self._explanation(explained, culprits)
        return self._searched(choices, explained)

    def _searched(self, choices: Sequence[RequestChoices], explained: list[RequestExplanation]) -> Explanation:
        deepest = _Deepest(self)
        search = Search(self._plan, choices, self._view, self._allocations, Limits(_never, _STEPS_MAX), deepest)
        try:
            if search.run():
                return Explanation(self._view.name, fits=True, requests=tuple(explained), summary="")
        except SearchStoppedError as error:
            return self._explanation(explained, [*deepest.found.values()], str(error))
        except AllocatorError as error:
            return self._explanation(explained, [], str(error))
        culprits = [*_of_claims(deepest.found.values(), explained)]
        replaced = {(item.claim, item.request): item for item in culprits}
        explained = [replaced.get((item.claim, item.request), item) for item in explained]
        return self._explanation(explained, culprits)

    def _explanation(
        self, explained: Sequence[RequestExplanation], culprits: Sequence[RequestExplanation], error: str | None = None
    ) -> Explanation:
        several = len([claim for claim in self._plan.claims if claim.label != HELD_BACK]) > 1
        lines = [f"claim {item.claim}, {item.summary}" if several else item.summary for item in culprits]
        if error is not None:
            lines.append(error)
        lines = lines or [_NOT_ALL]
        lines += [
            f"request {name} skipped: device class {sub.device_class_name} does not exist"
            for name, sub in self._plan.skipped()
        ]
        requests = tuple(item for item in explained if item.claim != HELD_BACK)
        return Explanation(self._view.name, fits=False, requests=requests, summary="; ".join(lines))

    # --- A request alone. ---

    def _static(self, request: PlannedRequest, choice: Choice) -> RequestExplanation:
        alternative = choice.alternative
        # What is of another class, or does not match, would not help if the node could use it.
        reasons = [_verdict_reason(alternative, device) or reason for device, reason in self._unseen]
        missing = ~choice.available & (1 << self._view.device_count()) - 1
        reasons += [self._reason(alternative, index) for index in indices(missing)]
        return RequestExplanation(
            claim=self._plan.claims[request.claim].label,
            request=alternative.name,
            needed=choice.needed,
            usable=choice.available.bit_count(),
            reasons=tuple(reasons),
            note=_note(choice),
        )

    def _reason(self, alternative: Alternative, index: int) -> DeviceReason:
        device = self._view.device(index)
        reason = _verdict_reason(alternative, device)
        if reason is not None:
            return reason
        if not alternative.admin_access and self._is_in_use(index, device):
            return InUse(device.key, tuple(self._allocations.holders(device.key)))
        taint = intolerable(self._view.taints(index, self._rules), alternative.tolerations)
        if taint is not None and self._view.gates.taints:
            return Tainted(device.key, taint)
        if not self._blocked >> index & 1 or alternative.admin_access:
            return self._capacity_reason(alternative, index, device)
        pool = device.entry.pool
        conflict = conflicting_set(pool.common_groups(self._allocations), device.groups)
        if conflict is not None and pool.lacking_counter(device, pool.used_counters(self._allocations)) is None:
            return Incompatible(device.key, conflict)
        return self._counter_reason(device, {})

    def _is_in_use(self, index: int, device: PoolDevice) -> bool:
        return self._allocations.in_use(device.key, shareable=bool(self._view.shared >> index & 1))

    def _capacity_reason(self, alternative: Alternative, index: int, device: PoolDevice) -> DeviceReason:
        problem = request_error(device.content, alternative.capacity)
        if problem is not None:
            return LacksCapacity(device.key, problem)
        if self._view.shared >> index & 1:
            taken = share(device.content, alternative.capacity)
            consumed = self._allocations.consumed(device.key)
            lacking = None if taken is None else fits(device.content, taken, consumed, {})
            if taken is not None and lacking is not None:
                whole = Quantity.parse(device.content.capacity[lacking].value).nanos
                left = whole - consumed.get(lacking, 0)
                text = f"capacity {lacking}: {amount_text(taken[lacking])} needed, {amount_text(left)} left"
                return LacksCapacity(device.key, text)
        else:
            assert not offers(device.content, alternative.capacity), "every other reason was looked for"
        return LacksCapacity(device.key)

    def _counter_reason(self, device: PoolDevice, also: Mapping[CounterName, int]) -> DeviceReason:
        pool = device.entry.pool
        used = dict(pool.used_counters(self._allocations))
        for counter, amount in also.items():
            used[counter] = used.get(counter, 0) + amount
        lacking = pool.lacking_counter(device, used)
        assert lacking is not None, "only devices without counters left are asked about"
        needed = sum(amount for counter, amount in device.consumes if counter == lacking)
        left = pool.counters.get(lacking, 0) - used.get(lacking, 0)
        group, name = lacking
        return LacksCounter(device.key, group, name, needed, left)

    # --- Devices that the node cannot use at all. ---

    def _unseen_devices(self) -> Iterator[tuple[PoolDevice, DeviceReason]]:
        for pool in self._view.incomplete:
            entries = list(pool.entries())
            slices, announced = len(entries), max((entry.slice_count for entry in entries), default=0)
            for device in self._devices_of(pool):
                yield device, InIncompletePool(device.key, pool.key, slices, announced)
        for pool in self._view.invalid:
            for device in self._devices_of(pool):
                yield device, InInvalidPool(device.key, pool.key, pool.problem or "")
        yield from self._unusable_devices()

    def _unusable_devices(self) -> Iterator[tuple[PoolDevice, DeviceReason]]:
        """Yield devices of sound pools that are elsewhere, or need features."""
        gates = self._view.gates
        for entry, reached in self._inventory.wide_entries(self._view.node, gates):
            for device in entry.devices:
                if device.key not in reached and entry.pool.complete and entry.pool.problem is None:
                    yield device, NotReached(device.key)
        for device in self._inventory.devices_of(self._view.node, gates):
            if not usable(device.spec, gates):
                yield device, FeatureDisabled(device.key)
            elif not can_skip_operations(device.entry, self._view.node, gates):
                yield device, NodeLacksFeature(device.key, OPTIONAL_NODE_OPERATIONS)

    def _devices_of(self, pool: Pool) -> Iterator[PoolDevice]:
        for device in self._inventory.devices_of(self._view.node, self._view.gates):
            if device.entry.pool is pool:
                yield device

    # --- A request after others. ---

    def at_dead_end(self, search: Search, request: int, choice_number: int) -> RequestExplanation:
        """Explain a request at a point where the search has no device left for it."""
        found = search.requests[request]
        choice = found.choices[choice_number]
        static = self._static(found.request, choice)
        reasons = list(static.reasons)
        for index in indices(choice.available):
            reason = self._dynamic(search, request, choice, index)
            if reason is not None:
                reasons.append(reason)
        return RequestExplanation(
            claim=static.claim,
            request=static.request,
            needed=choice.needed,
            usable=static.usable + len(static.reasons) - len(reasons),
            reasons=tuple(reasons),
        )

    def _dynamic(self, search: Search, request: int, choice: Choice, index: int) -> DeviceReason | None:
        device = self._view.device(index)
        claim = search.requests[request].claim
        for frame in search.frames:
            same = frame.index == index and not self._view.shared >> index & 1
            if same and frame.request == request:
                return None
            if same and not frame.choice.alternative.admin_access:
                return Taken(device.key, frame.choice.alternative.name, self._plan.claims[frame.claim].label)
        for position in choice.alternative.constraints:
            constraint = self._plan.claims[claim].constraints[position]
            state = search.attempt.constraint_states[claim][position]
            derived = choice.alternative.group.derived
            if constraint.add(state, device.content, derived) is None:
                violation = constraint.explain(state, device.content, derived)
                return ViolatesConstraint(device.key, violation.text, violation.brief)
        return self._dynamic_amounts(search, choice, index, device)

    def _dynamic_amounts(self, search: Search, choice: Choice, index: int, device: PoolDevice) -> DeviceReason | None:
        if self._view.shared >> index & 1:
            taken = share(device.content, choice.alternative.capacity)
            if taken is not None and search.attempt.lacking_capacity(index, device, taken) is not None:
                return LacksCapacity(device.key, "the shares chosen before leave too little capacity")
        elif device.consumes and search.attempt.lacking_counter(device) is not None:
            return self._counter_reason(device, search.attempt.counters_of(device.entry.pool))
        conflict = search.attempt.conflicting_set(device)
        return None if conflict is None else Incompatible(device.key, conflict)


class _Deepest:
    """Collects the explanations at the dead ends of the deepest request that the search reached."""

    def __init__(self, explainer: Explainer) -> None:
        self._explainer = explainer
        self._request = -1
        self._ordinals: dict[int, int] = {}
        # By number of the alternative.
        self.found: dict[int, RequestExplanation] = {}

    def dead_end(self, search: Search, request: int, choice_number: int, ordinal: int) -> None:
        """Explain the dead end if none was deeper."""
        if request < self._request:
            return
        if request == self._request and ordinal <= self._ordinals.get(choice_number, -1):
            return
        if request > self._request:
            self._request, self._ordinals, self.found = request, {}, {}
        self._ordinals[choice_number] = ordinal
        self.found[choice_number] = self._explainer.at_dead_end(search, request, choice_number)


def _verdict_reason(alternative: Alternative, device: PoolDevice) -> DeviceReason | None:
    """Return why the selectors or derived attributes rule out the device."""
    verdict = alternative.group.verdict(device.content)
    if verdict is None:
        return None
    if isinstance(verdict, DerivedFailure):
        return DerivedAttributeFailed(device.key, verdict.name, verdict.text)
    class_name = (alternative.device_class.metadata.name or "") if verdict.of_class else ""
    if isinstance(verdict, SelectorFailure):
        return SelectorFailed(device.key, class_name, verdict.index, verdict.text)
    return SelectorFalse(device.key, class_name, verdict.index, verdict.expression)


def _of_claims(
    culprits: Iterable[RequestExplanation], explained: Sequence[RequestExplanation]
) -> Iterator[RequestExplanation]:
    """Yield the culprits; instead of devices that are held back, the requests that lack them."""
    kept = sum(item.needed for item in explained if item.claim == HELD_BACK)
    lacking = [item for item in explained if item.claim != HELD_BACK and item.usable < item.needed + kept]
    for item in culprits:
        if item.claim != HELD_BACK:
            yield item
            continue
        for short in lacking:
            note = (
                f"{short.usable} usable, of which {kept} {'is' if kept == 1 else 'are'} kept for Pods that have "
                f"{'it' if kept == 1 else 'them'} through a device plugin, but {short.needed} needed"
            )
            yield replace(short, note=note)


def _never() -> bool:
    return False


def _note(choice: Choice) -> str | None:
    if choice.obstacle is not None:
        return choice.obstacle.problem
    if choice.needed > DEVICES_MAX:
        return f"{choice.needed} devices needed, more than the claim limit of {DEVICES_MAX}"
    return None
