"""The CEL environments of Kubernetes: device selectors and validation rules of custom resources."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from dray.api.document import Document
from dray.cel import runtime, types
from dray.cel.devices import DeviceView, DomainMap, device_view
from dray.cel.errors import CELError, CELRuntimeError
from dray.cel.function_costs import Range
from dray.cel.program import COST_LIMIT, STANDARD, Interrupt, Program, compile_program
from dray.cel.runtime import FAILURES
from dray.cel.schema import Converter, converter_of, schema_type
from dray.cel.signatures import Registry
from dray.cel.tree import Ident, walk
from dray.cel.types import BOOL, STRING, Field, Kind, Type
from dray.cel.values import NONE, Optional

__all__ = [
    "SELECTOR_COST_LIMIT",
    "CompiledExpression",
    "CompiledMessage",
    "CompiledRule",
    "CompiledSelector",
    "DeviceView",
    "DomainMap",
    "compile_derived_attribute",
    "compile_device_selector",
    "compile_message_expression",
    "compile_rule",
    "device_view",
]

# CELSelectorExpressionMaxCost of resource.k8s.io/v1, for the estimate and at run time.
SELECTOR_COST_LIMIT: Final = COST_LIMIT
# PerCallLimit of Kubernetes' CEL configuration.
RULE_COST_LIMIT: Final = COST_LIMIT
# RuntimeCELCostBudget of Kubernetes' CEL configuration: the rules of one object, or a policy with one binding.
RULES_COST_LIMIT: Final = 10_000_000

# Bounds of resource.k8s.io/v1: a domain, an id and a driver name, a string value, and the entries of a map.
_DOMAIN_LENGTH_MAX: Final = 63
_ID_LENGTH_MAX: Final = 32
_DRIVER_LENGTH_MAX: Final = 63
_VALUE_LENGTH_MAX: Final = 64
_ENTRIES_MAX: Final = 32

_INCLUDES: Final = Registry()
_INCLUDES.declare("dyn::includes(dyn) -> bool", runtime.includes, budgeted=True)
_SELECTOR_FUNCTIONS: Final = {False: STANDARD, True: STANDARD.merged(_INCLUDES)}


def _by_domain(value: Type) -> Type:
    inner = types.map_of(STRING.sized(_ID_LENGTH_MAX), value, _ENTRIES_MAX)
    return types.map_of(STRING.sized(_DOMAIN_LENGTH_MAX), inner, _ENTRIES_MAX)


@lru_cache(maxsize=4)
def _device_type(*, list_attributes: bool, consumable_capacity: bool) -> Type:
    # Only a dynamic attribute can be iterated over.
    attribute = (types.DYN if list_attributes else types.ANY).sized(_VALUE_LENGTH_MAX)
    fields = {
        "driver": Field(STRING.sized(_DRIVER_LENGTH_MAX), "driver"),
        "attributes": Field(_by_domain(attribute), "attributes"),
        "capacity": Field(_by_domain(types.QUANTITY.sized(0)), "capacity"),
    }
    if consumable_capacity:
        fields["allowMultipleAllocations"] = Field(BOOL, "allow_multiple")
    return types.object_type("kubernetes.DRADevice", fields, by_attribute=True).sized(0)


class CompiledExpression:
    """A compiled expression over a device."""

    __slots__ = ("_program", "_strict")

    def __init__(self, program: Program) -> None:
        self._program = program
        # The plain function, if nothing has to be counted at run time.
        self._strict = program.uncounted(SELECTOR_COST_LIMIT)

    @property
    def expression(self) -> str:
        """Return the source text."""
        return self._program.source

    @property
    def estimated_cost(self) -> int:
        """Return the maximum cost of an evaluation for any valid device."""
        return self._program.estimated_cost

    @property
    def program(self) -> Program:
        """Return the compiled expression."""
        return self._program

    def evaluate(
        self, device: DeviceView, *, cost_limit: int = SELECTOR_COST_LIMIT, interrupt: Interrupt | None = None
    ) -> Any:
        """Return the value of the expression for the device."""
        strict = self._strict
        if strict is not None and interrupt is None and cost_limit >= SELECTOR_COST_LIMIT:
            try:
                return strict(None, device)
            except FAILURES:
                return self._program.run(device, cost_limit=cost_limit)
        return self._program.run(device, cost_limit=cost_limit, interrupt=interrupt)


class CompiledSelector(CompiledExpression):
    """A compiled device selector."""

    __slots__ = ()

    def evaluate(
        self, device: DeviceView, *, cost_limit: int = SELECTOR_COST_LIMIT, interrupt: Interrupt | None = None
    ) -> bool:
        """Report whether the device matches."""
        result = super().evaluate(device, cost_limit=cost_limit, interrupt=interrupt)
        if result is True or result is False:
            return bool(result)
        raise CELRuntimeError(
            f"CEL result of type {runtime.type_name(result)} could not be converted to bool: "
            f"unsupported type conversion to 'bool'"
        )


def compile_device_selector(
    expression: str, *, list_attributes: bool = True, consumable_capacity: bool = True
) -> CompiledSelector:
    """Compile a selector; the flags are the features that newly written expressions may use."""
    return _compile_selector(expression, list_attributes=list_attributes, consumable_capacity=consumable_capacity)


# Claims of one template repeat their selectors; failures are not cached.
_SELECTOR_CACHE_SIZE: Final = 256


@lru_cache(maxsize=_SELECTOR_CACHE_SIZE)
def _compile_selector(expression: str, *, list_attributes: bool, consumable_capacity: bool) -> CompiledSelector:
    device = _device_type(list_attributes=list_attributes, consumable_capacity=consumable_capacity)
    program = compile_program(expression, {"device": device}, registry=_SELECTOR_FUNCTIONS[list_attributes])
    result = program.result_type
    if result.kind not in (Kind.BOOL, Kind.ANY, Kind.DYN):
        raise CELError(f"must evaluate to bool or the unknown type, not {result}")
    return CompiledSelector(program)


_SCALARS: Final = (STRING, types.INT, BOOL, types.SEMVER)


@lru_cache(maxsize=_SELECTOR_CACHE_SIZE)
def compile_derived_attribute(
    expression: str, *, list_attributes: bool = True, consumable_capacity: bool = True
) -> CompiledExpression:
    """Compile a derived attribute; the flags are the features that newly written expressions may use."""
    device = _device_type(list_attributes=list_attributes, consumable_capacity=consumable_capacity)
    program = compile_program(expression, {"device": device}, registry=_SELECTOR_FUNCTIONS[list_attributes])
    result = program.result_type
    element = result.params[0] if result.kind is Kind.LIST and list_attributes else result
    if not element.is_dyn and element not in _SCALARS:
        lists = " or a list of these scalars" if list_attributes else ""
        raise CELError(f"must evaluate to a primitive scalar (string, integer, boolean, semver){lists}, not {result}")
    return CompiledExpression(program)


class _SelfProgram:
    """An expression over `self`, and `oldSelf` where there is one."""

    __slots__ = ("_convert", "_optional_old", "_program", "uses_old_self")

    def __init__(self, program: Program, convert: Converter | None, *, optional_old: bool) -> None:
        self._program = program
        self._convert = convert
        self._optional_old = optional_old
        self.uses_old_self = any(isinstance(node, Ident) and node.name == "oldSelf" for node in walk(program.root))

    @property
    def estimated_cost(self) -> int:
        """Return the maximum cost of one evaluation, by the bounds of the schema."""
        return self._program.estimated_cost

    @property
    def estimated_costs(self) -> Range:
        """Return the minimum and maximum cost of one evaluation."""
        return self._program.estimated_costs

    @property
    def expression(self) -> str:
        """Return the source text."""
        return self._program.source

    @property
    def program(self) -> Program:
        """Return the compiled expression."""
        return self._program

    def values(self, self_value: Any, old_value: Any) -> list[Any]:
        """Return the variables in the order of their declaration."""
        values = [self.converted(self_value)]
        if "oldSelf" in self._program.checked.variables:
            values.append(self._old(old_value))
        return values

    def _run(self, self_value: Any, old_value: Any, cost_limit: int, interrupt: Interrupt | None) -> Any:
        return self._program.run(*self.values(self_value, old_value), cost_limit=cost_limit, interrupt=interrupt)

    def _old(self, old_value: Any) -> Any:
        if not self.uses_old_self:
            return None
        if not self._optional_old:
            return self.converted(old_value)
        return NONE if old_value is None else Optional(self.converted(old_value))

    def converted(self, value: Any) -> Any:
        """Return a value of the schema as expressions see it."""
        return value if self._convert is None else self._convert(value)


class CompiledRule(_SelfProgram):
    """A validation rule of a custom resource."""

    __slots__ = ()

    def evaluate(
        self,
        self_value: Any,
        old_value: Any = None,
        *,
        cost_limit: int = RULE_COST_LIMIT,
        interrupt: Interrupt | None = None,
    ) -> bool:
        """Report whether the value satisfies the rule."""
        result = self._run(self_value, old_value, cost_limit, interrupt)
        if result is True or result is False:
            return bool(result)
        raise CELRuntimeError("no such overload")


class CompiledMessage(_SelfProgram):
    """A `messageExpression`."""

    __slots__ = ()

    def evaluate(
        self,
        self_value: Any,
        old_value: Any = None,
        *,
        cost_limit: int = RULE_COST_LIMIT,
        interrupt: Interrupt | None = None,
    ) -> str:
        """Return the message about the value."""
        result = self._run(self_value, old_value, cost_limit, interrupt)
        if isinstance(result, str):
            return result
        raise CELRuntimeError("messageExpression does not evaluate to a string")


def _compile_about_self(
    expression: str, schema: Document, *, with_old_self: bool, optional_old_self: bool, is_root: bool
) -> tuple[Program, Converter | None]:
    declared = schema_type(schema, is_root=is_root) or types.DYN
    variables: Mapping[str, Type] = {"self": declared}
    if with_old_self:
        variables = {"self": declared, "oldSelf": types.optional_of(declared) if optional_old_self else declared}
    return compile_program(expression, variables, schema=declared), converter_of(schema)


def compile_rule(
    rule: str, schema: Document, *, with_old_self: bool = True, optional_old_self: bool = False, is_root: bool = False
) -> CompiledRule:
    """Compile a rule for values of a structural schema; a root schema has the fields of every object."""
    program, convert = _compile_about_self(
        rule, schema, with_old_self=with_old_self, optional_old_self=optional_old_self, is_root=is_root
    )
    if program.result_type.kind is not Kind.BOOL:
        raise CELError("cel expression must evaluate to a bool")
    return CompiledRule(program, convert, optional_old=optional_old_self)


def compile_message_expression(
    expression: str,
    schema: Document,
    *,
    with_old_self: bool = True,
    optional_old_self: bool = False,
    is_root: bool = False,
) -> CompiledMessage:
    """Compile the expression of a rule's message."""
    program, convert = _compile_about_self(
        expression, schema, with_old_self=with_old_self, optional_old_self=optional_old_self, is_root=is_root
    )
    if program.result_type.kind is not Kind.STRING:
        raise CELError("messageExpression must evaluate to a string")
    return CompiledMessage(program, convert, optional_old=optional_old_self)
