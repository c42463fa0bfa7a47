"""The search: requests, alternatives and devices in order; the first complete solution wins.

It is a depth-first search with an explicit stack. Up to the first dead end it costs only its steps. After that it uses
symmetry (see `symmetry`): one of several equivalent devices is tried, failed states are cached, and it backtracks
straight to the last device that could have mattered. All of these only skip states without a solution, so that the
first solution stays the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from dray.allocator.allocations import AllocatedDevices
from dray.allocator.attempt import Attempt, Frame
from dray.allocator.bits import above, lowest
from dray.allocator.bounds import Bounds
from dray.allocator.choices import Choice, RequestChoices
from dray.allocator.errors import SearchStoppedError, StopReason
from dray.allocator.plan import DEVICES_MAX, Plan, device_error
from dray.allocator.pools import CounterName, Pool
from dray.allocator.symmetry import Symmetry
from dray.allocator.view import NodeView

# Steps after which a search is stopped: about two seconds, where Kubernetes allows ten.
STEPS_MAX: Final = 100_000
# Steps between two checks of the deadline.
_STEPS_PER_CHECK: Final = 128
# Cached failed states; beyond that only the step limit bounds the search.
_FAILED_MAX: Final = 200_000

StateKey = tuple[object, ...]


class Limits(msgspec.Struct, frozen=True):
    """The limits of a search."""

    expired: Callable[[], bool]
    steps_max: int = STEPS_MAX


class Trace(Protocol):
    """Receives dead ends, for explanations."""

    def dead_end(self, search: Search, request: int, choice_number: int, ordinal: int) -> None:
        """Handle a frame that no device is left for; the search is still in the state of the frame."""


class Search:
    """One search on one node; used once."""

    __slots__ = (
        "_bounds",
        "_failed",
        "_has_admin",
        "_least_after",
        "_limited",
        "_limits",
        "_refuted",
        "_symmetry",
        "_trace",
        "attempt",
        "frames",
        "plan",
        "requests",
        "steps",
        "view",
    )

    def __init__(
        self,
        plan: Plan,
        requests: Sequence[RequestChoices],
        view: NodeView,
        allocations: AllocatedDevices,
        limits: Limits,
        trace: Trace | None = None,
    ) -> None:
        self.plan = plan
        self.requests = requests
        self.view = view
        self.attempt = Attempt(plan, view, allocations)
        self.frames: list[Frame] = []
        self.steps = 0
        self._least_after, self._limited = _sizes(plan, requests)
        self._has_admin = [False] * len(plan.claims)
        for request in requests:
            if request.choices[0].alternative.admin_access:
                self._has_admin[request.claim] = True
        self._limits = limits
        self._trace = trace
        self._symmetry: Symmetry | None = None
        self._bounds: Bounds | None = None
        self._refuted = False
        self._failed: set[StateKey] = set()

    def run(self) -> bool:
        """Return whether there is a solution; it is then in the frames."""
        if not self.requests:
            return True
        if self._limits.expired():
            raise self._stopped(StopReason.DEADLINE, self.requests[0], -1)
        if not self._enter(0, 0):
            return False
        while True:
            frame = self.frames[-1]
            if self._next_device(frame):
                last = frame.ordinal + 1 == frame.choice.needed
                if last and frame.request + 1 == len(self.requests):
                    return True
                if last:
                    going_on = self._enter(frame.request + 1, 0) or self._backtrack(frame.request + 1)
                else:
                    # Without a candidate the next iteration continues with this frame.
                    self._push(frame.request, frame.choice_number, frame.ordinal + 1, frame.index)
                    going_on = True
            else:
                self.frames.pop()
                going_on = self._exhausted(frame)
            if not going_on:
                return False

    # --- Moving. ---

    def _enter(self, request: int, choice_number: int) -> bool:
        """Enter the request with the first usable alternative from the number on."""
        if self._symmetry is not None and choice_number == 0 and self._is_refuted(request):
            return False
        choices = self.requests[request].choices
        for number in range(choice_number, len(choices)):
            choice = choices[number]
            if not choice.feasible:
                if choice.failing:
                    raise self._device_error(request, choice, lowest(choice.failing))
                continue
            count = self.attempt.counts[self.requests[request].claim]
            if count + choice.needed + self._least_after[request] > DEVICES_MAX:
                continue
            if self._push(request, number, 0, -1):
                return True
        return False

    def _push(self, request: int, choice_number: int, ordinal: int, after: int) -> bool:
        """Push a frame for the next device, unless there cannot be enough."""
        choices = self.requests[request]
        choice = choices.choices[choice_number]
        start = self.attempt.candidates(choices.claim, choice, after)
        missing = choice.needed - ordinal
        if choice.alternative.takes_all:
            start = _forced(choice, start, after)
            missing = 1
        elif self._bounds is not None and start.bit_count() >= missing:
            start = self._bounded(request, choice, start, missing)
            if self._bounds.most(choice, start, self.attempt.counters_of) < missing:
                start = 0
        if start.bit_count() < missing:
            if self._trace is not None:
                self._trace.dead_end(self, request, choice_number, ordinal)
            return False
        frame = Frame(request, choice_number, ordinal, choices, start)
        if self._symmetry is not None and self._frame_key(self._symmetry, frame) in self._failed:
            return False
        self.frames.append(frame)
        return True

    def _next_device(self, frame: Frame) -> bool:
        """Take the next acceptable device instead of the current one."""
        if frame.index >= 0:
            tried = frame.index
            self.attempt.undo(frame)
            frame.candidates &= ~self._equivalent(frame, tried)
        missing = 1 if frame.choice.alternative.takes_all else frame.choice.needed - frame.ordinal
        while frame.candidates.bit_count() >= missing:
            index = frame.choice.first(frame.candidates)
            frame.candidates ^= 1 << index
            self._count_step(frame, index)
            if frame.choice.failing >> index & 1:
                raise self._device_error(frame.request, frame.choice, index)
            if self.attempt.take(frame, index):
                return True
            frame.candidates &= ~self._equivalent(frame, index)
        return False

    def _equivalent(self, frame: Frame, index: int) -> int:
        """Return the devices that are equivalent to one that failed."""
        if self._symmetry is None:
            return 0
        alike = self._symmetry.equivalent(index)
        if frame.choice.alternative.admin_access:
            # A device taken by another claim of this search is not equivalent to a free one.
            taken = self.attempt.taken
            alike &= taken if taken >> index & 1 else ~taken
        return alike

    def _exhausted(self, frame: Frame) -> bool:
        """Continue after a frame without candidates was popped; return False if the search is over."""
        if self._trace is not None:
            self._trace.dead_end(self, frame.request, frame.choice_number, frame.ordinal)
        symmetry = self._learn()
        if self._refuted:
            return False
        self._cache_failed(self._frame_key(symmetry, frame))
        if frame.ordinal:
            return True
        return self._enter(frame.request, frame.choice_number + 1) or self._backtrack(frame.request)

    def _backtrack(self, request: int) -> bool:
        """Backtrack to the last frame that could have mattered to an unsatisfiable request; False if there is none."""
        symmetry = self._learn()
        if self._refuted:
            return False
        self._cache_failed(self._request_key(symmetry, request))
        while self.frames:
            if self._matters(symmetry, self.frames[-1], request):
                return True
            frame = self.frames.pop()
            if frame.index >= 0:
                self.attempt.undo(frame)
        return False

    def _matters(self, symmetry: Symmetry, frame: Frame, request: int) -> bool:
        claim = self.requests[request].claim
        same_claim_matters = self.plan.claims[claim].constraints or self._limited[claim] or self._has_admin[claim]
        if same_claim_matters and frame.claim == claim:
            return True
        if frame.choice.alternative.admin_access:
            return False
        pool = self.view.device(frame.index).entry.pool.key if frame.took_counters else None
        return symmetry.concerns(frame.index, pool, request)

    # --- Candidates. ---

    def _bounded(self, request: int, choice: Choice, candidates: int, missing: int) -> int:
        """Return the candidates without those that the constraints rule out."""
        assert self._symmetry is not None, "only after a dead end"
        claim = self.requests[request].claim
        states = self.attempt.constraint_states[claim]
        constraints, derived = self.plan.claims[claim].constraints, choice.alternative.group.derived
        for position in choice.alternative.constraints:
            constraint, state = constraints[position], states[position]
            index = self._symmetry.constraint_index(constraint, derived)
            if choice.failing:
                # Devices that cannot be evaluated end the search, and must not be skipped.
                candidates = constraint.allowed(index, state, candidates) | candidates & choice.failing
            else:
                candidates = constraint.prune(index, state, candidates, missing)
        return candidates

    def _is_refuted(self, request: int) -> bool:
        """Return whether this state failed before, or a later request has too few devices left."""
        assert self._symmetry is not None, "only after a dead end"
        assert self._bounds is not None, "constructed with the symmetry"
        if self._bounds.refute(request, self.attempt.taken, self.attempt.counters_of):
            return True
        for later in self.requests[request:]:
            if not any(self._has_enough(choice) for choice in later.choices if choice.feasible):
                return True
        return self._request_key(self._symmetry, request) in self._failed

    def _has_enough(self, choice: Choice) -> bool:
        usable = choice.available | choice.failing
        if not choice.alternative.admin_access:
            usable &= ~self.attempt.taken
        if choice.alternative.takes_all:
            return not choice.everything & ~usable
        assert self._bounds is not None, "only after a dead end"
        return self._bounds.most(choice, usable, self.attempt.counters_of) >= choice.needed

    # --- Learning. ---

    def _learn(self) -> Symmetry:
        if self._symmetry is None:
            self._symmetry = Symmetry(self.plan, self.requests, self.view)
            self._bounds = Bounds(self.requests, self.view, self.attempt.allocations)
            # Most unsatisfiable requests are refuted by counting once from the start.
            self._refuted = self._bounds.refute(0, 0, _nothing)
        return self._symmetry

    def _cache_failed(self, key: StateKey) -> None:
        if len(self._failed) < _FAILED_MAX:
            self._failed.add(key)

    def _request_key(self, symmetry: Symmetry, request: int) -> StateKey:
        return (request, self._taken(symmetry, request), *self._state(request))

    def _frame_key(self, symmetry: Symmetry, frame: Frame) -> StateKey:
        taken = self._taken(symmetry, frame.request + 1)
        state = self._state(frame.request)
        return (frame.request, frame.choice_number, frame.ordinal, frame.start, taken, *state)

    def _taken(self, symmetry: Symmetry, request: int) -> object:
        # Admin access depends on which devices are taken, so counting them is not enough.
        taken = self.attempt.taken
        return taken if any(self._has_admin) else symmetry.taken(taken, request)

    def _state(self, request: int) -> StateKey:
        """Return how earlier decisions affect this and later requests, apart from exclusively used devices."""
        claim = self.requests[request].claim
        attempt = self.attempt
        count = attempt.counts[claim] if self._limited[claim] else 0
        admin = (attempt.admin_used[claim], attempt.claim_used[claim]) if self._has_admin[claim] else None
        return (attempt.constraint_states[claim], count, attempt.parts(), admin)

    # --- Stopping. ---

    def _count_step(self, frame: Frame, index: int) -> None:
        self.steps += 1
        if self.steps > self._limits.steps_max:
            raise self._stopped(StopReason.STEPS, self.requests[frame.request], index)
        if self.steps % _STEPS_PER_CHECK == 0 and self._limits.expired():
            raise self._stopped(StopReason.DEADLINE, self.requests[frame.request], index)

    def _stopped(self, reason: StopReason, request: RequestChoices, index: int) -> SearchStoppedError:
        label = self.plan.claims[request.claim].label
        bound = (
            "deadline exceeded"
            if reason is StopReason.DEADLINE
            else f"limit of {self._limits.steps_max} steps exceeded"
        )
        tried = f" while trying device {self.view.device(index).key}" if index >= 0 else ""
        text = f"node {self.view.name}: claim {label}, request {request.request.name}: {bound}{tried}"
        return SearchStoppedError(reason, text, self.steps)

    def _device_error(self, request: int, choice: Choice, index: int) -> Exception:
        claim = self.plan.claims[self.requests[request].claim]
        return device_error(claim, choice.alternative, self.view.device(index))


def _forced(choice: Choice, candidates: int, after: int) -> int:
    """Return the next device of mode All, or none if one of the remaining devices is not a candidate."""
    rest = above(choice.everything, after)
    return 0 if rest & ~candidates else rest & -rest


def _nothing(_pool: Pool) -> Mapping[CounterName, int]:
    return {}


def _sizes(plan: Plan, requests: Sequence[RequestChoices]) -> tuple[list[int], list[bool]]:
    """Return what later requests of the same claim need at least, and which claims could exceed their limit."""
    least_after = [0] * len(requests)
    most = [0] * len(plan.claims)
    for number in reversed(range(len(requests))):
        choices = requests[number]
        following = requests[number + 1] if number + 1 < len(requests) else None
        if following is not None and following.claim == choices.claim:
            least_after[number] = least_after[number + 1] + following.least
        most[choices.claim] += max(choice.needed for choice in choices.choices)
    return least_after, [count > DEVICES_MAX for count in most]
