"""Kubernetes' resource quantities: exact fixed-point numbers that remember how they were written.

An amount is a whole number of nano units, so comparison and arithmetic are exact; a finer amount is rounded
away from zero when it is parsed. Error texts are those of k8s.io/apimachinery `resource`, since users match them.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

_FORMAT_TEXT: Final = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_SUFFIX_TEXT: Final = "unable to parse quantity's suffix"
_NUMERIC_TEXT: Final = "unable to parse numeric part of quantity"

_NANO: Final = 9
_NANOS_PER_UNIT: Final = 10**_NANO
_INT64_MAX: Final = 2**63 - 1
_INT64_MIN: Final = -(2**63)
# A written exponent beyond this would only cost memory: int64 ends at 10^19.
_EXPONENT_MAX: Final = 400
# Longest text that is looked at; longer ones could only repeat digits.
_TEXT_LENGTH_MAX: Final = 1024
_CACHE_SIZE: Final = 8192


class Format(enum.StrEnum):
    """The family of suffixes a quantity was written with."""

    DECIMAL_EXPONENT = "DecimalExponent"
    BINARY_SI = "BinarySI"
    DECIMAL_SI = "DecimalSI"


_DECIMAL_SUFFIXES: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY_SUFFIXES: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_BY_EXPONENT: Final = {exponent: suffix for suffix, exponent in _DECIMAL_SUFFIXES.items()}
_BINARY_BY_EXPONENT: Final = {exponent: suffix for suffix, exponent in _BINARY_SUFFIXES.items()}

_PARTS: Final = re.compile(r"([+-]?)([0-9]*)(?:(\.)([0-9]*))?([eEinumkKMGTP]*[-+]?[0-9]*)", re.ASCII)
_EXPONENT: Final = re.compile(r"[eE]([+-]?[0-9]+)", re.ASCII)


class QuantityError(ValueError):
    """A text that is no quantity, or a quantity that does not fit."""


@dataclass(frozen=True, slots=True, eq=False)
class Quantity:
    """An exact amount; two quantities are equal when their amounts are, however they are written."""

    nanos: int
    format: Format = Format.DECIMAL_SI

    @classmethod
    def parse(cls, value: str | int | float) -> Quantity:
        """Read a quantity from its text, or from a JSON number."""
        if isinstance(value, str):
            return _parse(value)
        if isinstance(value, bool):
            raise QuantityError(_FORMAT_TEXT)
        if isinstance(value, int):
            return cls(value * _NANOS_PER_UNIT)
        return _parse(repr(value))

    @property
    def sign(self) -> int:
        """1, 0 or -1."""
        return (self.nanos > 0) - (self.nanos < 0)

    # Written out: allocation compares quantities for every device.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantity) and self.nanos == other.nanos

    def __hash__(self) -> int:
        return hash(self.nanos)

    def __lt__(self, other: Quantity) -> bool:
        return self.nanos < other.nanos

    def __le__(self, other: Quantity) -> bool:
        return self.nanos <= other.nanos

    def __gt__(self, other: Quantity) -> bool:
        return self.nanos > other.nanos

    def __ge__(self, other: Quantity) -> bool:
        return self.nanos >= other.nanos

    def __add__(self, other: Quantity) -> Quantity:
        # A zero takes the format of what is added to it, as Kubernetes' Add does.
        return Quantity(self.nanos + other.nanos, self.format if self.nanos else other.format)

    def __sub__(self, other: Quantity) -> Quantity:
        return Quantity(self.nanos - other.nanos, self.format if self.nanos else other.format)

    def __neg__(self) -> Quantity:
        return Quantity(-self.nanos, self.format)

    def __bool__(self) -> bool:
        return self.nanos != 0

    def value(self) -> int:
        """The amount in whole units, rounded away from zero."""
        return _divide_away_from_zero(self.nanos, _NANOS_PER_UNIT)

    def milli_value(self) -> int:
        """The amount in thousandths, rounded away from zero."""
        return _divide_away_from_zero(self.nanos, _NANOS_PER_UNIT // 1000)

    def is_integer(self) -> bool:
        """Whether the amount is a whole number that fits int64."""
        whole, rest = divmod(self.nanos, _NANOS_PER_UNIT)
        return rest == 0 and _INT64_MIN <= whole <= _INT64_MAX

    def as_integer(self) -> int:
        """The amount as an int64; an error when it has a fraction or does not fit."""
        if not self.is_integer():
            raise QuantityError("cannot convert value to integer")
        return self.nanos // _NANOS_PER_UNIT

    def as_float(self) -> float:
        """The nearest double."""
        return self.nanos / _NANOS_PER_UNIT

    def __str__(self) -> str:
        if self.nanos == 0:
            return "0"
        if self.format is Format.BINARY_SI:
            whole, rest = divmod(self.nanos, _NANOS_PER_UNIT)
            # Small or fractional amounts would lose digits in powers of 1024.
            if rest == 0 and abs(whole) >= 1024:  # noqa: PLR2004 - the base of the binary suffixes
                return _binary_text(whole)
            return _decimal_text(self.nanos, Format.DECIMAL_SI)
        return _decimal_text(self.nanos, self.format)


def is_quantity(text: str) -> bool:
    """Whether the text is a quantity."""
    try:
        _parse(text)
    except QuantityError:
        return False
    return True


def _divide_away_from_zero(amount: int, divisor: int) -> int:
    return -(-amount // divisor) if amount > 0 else amount // divisor


@lru_cache(maxsize=_CACHE_SIZE)
def _parse(text: str) -> Quantity:
    if not text or len(text) > _TEXT_LENGTH_MAX:
        raise QuantityError(_FORMAT_TEXT)
    match = _PARTS.fullmatch(text)
    if match is None:
        raise QuantityError(_FORMAT_TEXT)
    sign, whole, dot, fraction, suffix = match.groups()
    base, exponent, number_format = _interpret_suffix(suffix)
    digits = whole + (fraction or "")
    if not digits:
        # A lone sign counts as zero; a lone dot or suffix does not.
        if sign and not dot and not suffix:
            return Quantity(0, number_format)
        raise QuantityError(_NUMERIC_TEXT)
    nanos = _scale(int(digits), base=base, exponent=exponent, fraction_digits=len(fraction or ""))
    if number_format is Format.BINARY_SI:
        nanos = min(nanos, _INT64_MAX * _NANOS_PER_UNIT)
        if 0 < nanos < _NANOS_PER_UNIT:
            number_format = Format.DECIMAL_SI
    return Quantity(-nanos if sign == "-" else nanos, number_format)


def _interpret_suffix(suffix: str) -> tuple[int, int, Format]:
    if suffix in _DECIMAL_SUFFIXES:
        return 10, _DECIMAL_SUFFIXES[suffix], Format.DECIMAL_SI
    if suffix in _BINARY_SUFFIXES:
        return 2, _BINARY_SUFFIXES[suffix], Format.BINARY_SI
    match = _EXPONENT.fullmatch(suffix)
    if match is None:
        raise QuantityError(_SUFFIX_TEXT)
    exponent = int(match[1])
    if exponent > _EXPONENT_MAX:
        raise QuantityError(_SUFFIX_TEXT)
    return 10, max(exponent, -_TEXT_LENGTH_MAX - _NANO), Format.DECIMAL_EXPONENT


def _scale(digits: int, *, base: int, exponent: int, fraction_digits: int) -> int:
    """The digits as nano units, rounded up: whoever asks for something gets at least the smallest amount."""
    if base == 2:  # noqa: PLR2004 - the base of the binary suffixes
        digits, exponent = digits << exponent, 0
    shift = exponent - fraction_digits + _NANO
    factor: int = 10 ** abs(shift)
    return digits * factor if shift >= 0 else -(-digits // factor)


def _decimal_text(nanos: int, number_format: Format) -> str:
    number, exponent = nanos, -_NANO
    while number % 1000 == 0 and (number_format is Format.DECIMAL_EXPONENT or exponent < 18):  # noqa: PLR2004 - exa
        number, exponent = number // 1000, exponent + 3
    if number_format is Format.DECIMAL_EXPONENT:
        return f"{number}e{exponent}" if exponent else str(number)
    return f"{number}{_DECIMAL_BY_EXPONENT[exponent]}"


def _binary_text(whole: int) -> str:
    exponent = 0
    while whole % 1024 == 0 and exponent < 60:  # noqa: PLR2004 - exbi is the largest suffix
        whole, exponent = whole // 1024, exponent + 10
    return f"{whole}{_BINARY_BY_EXPONENT[exponent]}" if exponent else str(whole)
