"""Reads the `args` of a plugin: every field has a type and a range, and unknown fields are refused by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dray.api.names import qualified_name


class Arguments:
    """The arguments of one plugin; each is read once, and `end` refuses those that were not."""

    def __init__(self, args: Mapping[str, Any], path: str = "") -> None:
        self._args = args
        self._path = f"{path}." if path else ""
        self._read: set[str] = set()

    def value(self, name: str) -> Any:
        """Return a field of any type; None if it is absent."""
        self._read.add(name)
        return self._args.get(name)

    def text(self, name: str, default: str = "") -> str:
        """Return a string; raises `TypeError`."""
        value = self.value(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise TypeError(f"{self._path}{name}: must be a string")
        return value

    def mapping(self, name: str) -> Mapping[str, Any]:
        """Return a map; raises `TypeError`."""
        value = self.value(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise TypeError(f"{self._path}{name}: must be a map")
        return value

    def texts(self, name: str) -> Sequence[str]:
        """Return a list of strings; raises `TypeError`."""
        value = self.value(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise TypeError(f"{self._path}{name}: must be a list of strings")
        return value

    def label_names(self, name: str) -> Sequence[str]:
        """Return a list of names such as those of labels and resources; raises `ValueError` or `TypeError`."""
        found = self.texts(name)
        problems = [
            f'{self._path}{name}[{index}]: Invalid value: "{item}": {problem}'
            for index, item in enumerate(found)
            for problem in qualified_name(item)
        ]
        if problems:
            raise ValueError(*problems)
        return found

    def integer(self, name: str, default: int, least: int, most: int | None) -> int:
        """Return an integer within the limits; raises `ValueError` or `TypeError`."""
        value = self.value(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{self._path}{name}: must be an integer")
        if value < least or (most is not None and value > most):
            limits = f"[{least}, {most}]" if most is not None else f"[{least}, inf)"
            raise ValueError(f"{self._path}{name}: Invalid value: {value}: not in valid range {limits}")
        return value

    def number(self, name: str) -> float:
        """Return a number, 0 if it is absent; raises `TypeError`."""
        value = self.value(name)
        if value is None:
            return 0.0
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{self._path}{name}: must be a number")
        return float(value)

    def boolean(self, name: str, *, default: bool = False) -> bool:
        """Return a boolean; raises `TypeError`."""
        value = self.value(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise TypeError(f"{self._path}{name}: must be true or false")
        return value

    def choice(self, name: str, default: str, allowed: Sequence[str]) -> str:
        """Return one of the allowed texts; raises `ValueError`."""
        value = self.value(name)
        if value is None or value == "":
            return default
        if value not in allowed:
            listed = ", ".join(f'"{item}"' for item in allowed)
            raise ValueError(f'{self._path}{name}: Unsupported value: "{value}": supported values: {listed}')
        return str(value)

    def items(self, name: str) -> Sequence[Mapping[str, Any]]:
        """Return a list of maps; raises `TypeError`."""
        value = self.value(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise TypeError(f"{self._path}{name}: must be a list of maps")
        return value

    def end(self) -> None:
        """Refuse fields that were not read; raises `ValueError`."""
        for name in self._args:
            if name not in self._read:
                raise ValueError(f"{self._path}{name}: not supported")
