"""Results of runs that are kept as files, so that many seeds can be run one after the other on different days."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from bench.openb.run import Result


class KeptResults:
    """A folder with a file for each list, profile, engine and seed; without a folder nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def find(self, name: str, profile: str, engine: str, seed: int) -> Result | None:
        """Return the result of an earlier run, without the placements."""
        if self._folder is None:
            return None
        try:
            return msgspec.json.decode(self._path(self._folder, name, profile, engine, seed).read_bytes(), type=Result)
        except FileNotFoundError:
            return None

    def keep(self, name: str, profile: str, engine: str, result: Result) -> None:
        """Write the result of a run."""
        if self._folder is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(self._folder, name, profile, engine, result.seed)
        # A run that is interrupted here is repeated.
        part = path.with_suffix(".part")
        part.write_bytes(msgspec.json.encode(replace(result, placements=[])))
        part.rename(path)

    @staticmethod
    def _path(folder: Path, name: str, profile: str, engine: str, seed: int) -> Path:
        return folder / f"{name}-{profile}-{engine}-{seed}.json"
