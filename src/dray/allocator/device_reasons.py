"""Why one request cannot use one device, as values; their texts are made here and nowhere else. Pure.

`text` is the reason for the one device. `brief` follows a number of devices: reasons with equal ones are counted
together, as in "3 in use, 1 lack capacity".
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import ClassVar, Final

from dray.api.quantity import Format, Quantity
from dray.api.types.resource_v1 import DeviceTaint

_MEBI_NANOS: Final = 2**20 * 10**9


class Reason(enum.StrEnum):
    """Kinds of reasons, in the order of evaluation."""

    NODE_NOT_REACHED = "node not reached"
    POOL_INCOMPLETE = "pool incomplete"
    POOL_INVALID = "pool invalid"
    FEATURE_DISABLED = "feature disabled"
    SELECTOR = "selector"
    SELECTOR_ERROR = "selector error"
    IN_USE = "in use"
    TAINT = "taint"
    CAPACITY = "capacity"
    COUNTER = "counter"
    INCOMPATIBLE = "incompatible"
    TAKEN = "taken"
    CONSTRAINT = "constraint"


@dataclass(frozen=True, slots=True)
class DeviceReason:
    """The base of all reasons; the device is named `driver/pool/device`."""

    reason: ClassVar[Reason]
    device: str

    @property
    def text(self) -> str:
        """Return the reason of the device."""
        raise NotImplementedError

    @property
    def brief(self) -> str:
        """Return what the device has in common with others."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class NotReached(DeviceReason):
    """The device is elsewhere."""

    reason: ClassVar = Reason.NODE_NOT_REACHED
    text: ClassVar = "cannot be used from the node"
    brief: ClassVar = "not reachable from the node"


@dataclass(frozen=True, slots=True)
class InIncompletePool(DeviceReason):
    """Not all slices of the pool's newest generation are there."""

    reason: ClassVar = Reason.POOL_INCOMPLETE
    brief: ClassVar = "in incomplete pools"
    pool: str
    # How many slices there are, and how many the driver has announced.
    slices: int
    announced: int

    @property
    def text(self) -> str:
        """Name the pool and what it lacks."""
        return f"resource pool {self.pool} is incomplete: it has {self.slices} of {self.announced} slices"


@dataclass(frozen=True, slots=True)
class InInvalidPool(DeviceReason):
    """The slices of the pool contradict each other."""

    reason: ClassVar = Reason.POOL_INVALID
    brief: ClassVar = "in invalid pools"
    pool: str
    problem: str

    @property
    def text(self) -> str:
        """Name the pool and its problem."""
        return f"resource pool {self.pool} is invalid: {self.problem}"


@dataclass(frozen=True, slots=True)
class FeatureDisabled(DeviceReason):
    """The device needs a feature that the scheduler does not have."""

    reason: ClassVar = Reason.FEATURE_DISABLED
    text: ClassVar = "needs a feature that is disabled"
    brief: ClassVar = "need a disabled feature"


@dataclass(frozen=True, slots=True)
class NodeLacksFeature(DeviceReason):
    """The device needs a feature that the node does not have."""

    reason: ClassVar = Reason.FEATURE_DISABLED
    brief: ClassVar = "need a feature that the node lacks"
    feature: str

    @property
    def text(self) -> str:
        """Name the feature."""
        return f"needs the feature {self.feature} on the node and in the scheduler"


@dataclass(frozen=True, slots=True)
class SelectorFalse(DeviceReason):
    """A selector does not match; `class_name` is empty if it is the request's."""

    reason: ClassVar = Reason.SELECTOR
    class_name: str
    index: int
    expression: str

    @property
    def text(self) -> str:
        """Quote the selector."""
        return f"selector #{self.index} of {_owner(self.class_name)} is false: {self.expression}"

    @property
    def brief(self) -> str:
        """Say whose it is."""
        return f"do not match {'class' if self.class_name else 'request'} selector"


@dataclass(frozen=True, slots=True)
class SelectorFailed(DeviceReason):
    """A selector cannot be evaluated; `class_name` is empty if it is the request's."""

    reason: ClassVar = Reason.SELECTOR_ERROR
    brief: ClassVar = "make a selector fail"
    class_name: str
    index: int
    problem: str

    @property
    def text(self) -> str:
        """Quote the error."""
        return f"selector #{self.index} of {_owner(self.class_name)}: {self.problem}"


@dataclass(frozen=True, slots=True)
class DerivedAttributeFailed(DeviceReason):
    """A derived attribute cannot be computed."""

    reason: ClassVar = Reason.SELECTOR_ERROR
    brief: ClassVar = "make a derived attribute fail"
    name: str
    problem: str

    @property
    def text(self) -> str:
        """Name it with the error."""
        return f"derived attribute {self.name}: {self.problem}"


@dataclass(frozen=True, slots=True)
class InUse(DeviceReason):
    """Other claims have the device."""

    reason: ClassVar = Reason.IN_USE
    brief: ClassVar = "in use"
    holders: tuple[str, ...]

    @property
    def text(self) -> str:
        """Name the claims."""
        return f"in use by claim {', '.join(self.holders)}"


@dataclass(frozen=True, slots=True)
class Tainted(DeviceReason):
    """The request does not tolerate a taint."""

    reason: ClassVar = Reason.TAINT
    taint: DeviceTaint

    @property
    def name(self) -> str:
        """Return the taint as `key=value:effect`."""
        value = f"={self.taint.value}" if self.taint.value else ""
        return f"{self.taint.key}{value}:{self.taint.effect}"

    @property
    def text(self) -> str:
        """Name the taint."""
        return f"taint {self.name} is not tolerated"

    @property
    def brief(self) -> str:
        """Name the taint as well: what helps is different for each."""
        return f"tainted ({self.name})"


@dataclass(frozen=True, slots=True)
class LacksCapacity(DeviceReason):
    """The device does not have, or not any more, the capacity asked for."""

    reason: ClassVar = Reason.CAPACITY
    brief: ClassVar = "lack capacity"
    text: str = "does not have the capacity asked for"


@dataclass(frozen=True, slots=True)
class LacksCounter(DeviceReason):
    """Too little of a counter is left; amounts are in nano units."""

    reason: ClassVar = Reason.COUNTER
    counter_set: str
    counter: str
    needed: int
    left: int

    @property
    def text(self) -> str:
        """State both amounts."""
        of = f"counter {self.counter} of counter set {self.counter_set}"
        return f"{of}: {amount_text(self.needed)} needed, {amount_text(self.left)} left"

    @property
    def brief(self) -> str:
        """Name the counter."""
        return f"lack counter {self.counter_set}/{self.counter}"


@dataclass(frozen=True, slots=True)
class Incompatible(DeviceReason):
    """The devices in use of the counter set exclude the device."""

    reason: ClassVar = Reason.INCOMPATIBLE
    counter_set: str

    @property
    def text(self) -> str:
        """Name the counter set."""
        return f"no compatibility group in common with the devices in use of counter set {self.counter_set}"

    @property
    def brief(self) -> str:
        """Name it as well."""
        return f"incompatible with devices in use of {self.counter_set}"


@dataclass(frozen=True, slots=True)
class Taken(DeviceReason):
    """An earlier request of the same Pod has the device."""

    reason: ClassVar = Reason.TAKEN
    request: str
    claim: str

    @property
    def text(self) -> str:
        """Name the request with its claim."""
        return f"{self.brief} of claim {self.claim}"

    @property
    def brief(self) -> str:
        """Name the request."""
        return f"taken by request {self.request}"


@dataclass(frozen=True, slots=True)
class ViolatesConstraint(DeviceReason):
    """A constraint does not allow the device beside those chosen before."""

    reason: ClassVar = Reason.CONSTRAINT
    text: str
    brief: str


def _owner(class_name: str) -> str:
    return f"class {class_name}" if class_name else "the request"


def amount_text(nanos: int) -> str:
    """Return an amount; whole mebibytes in the largest binary unit that divides it."""
    is_binary = nanos != 0 and nanos % _MEBI_NANOS == 0
    return str(Quantity(nanos, Format.BINARY_SI if is_binary else Format.DECIMAL_SI))
