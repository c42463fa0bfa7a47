"""An agent that crashes at any step prepares nothing twice, starts nothing too early, and leaves nothing behind.

The last tests break the agent on purpose: the simulation must notice.
"""

from __future__ import annotations

from typing import Any

import pytest

from dray.node import checkpoint_file
from dray.node.checkpoint_file import CheckpointFile
from dray.node.devices.device_manager import DeviceManager
from dray.node.dra.claim_info_cache import ClaimInfoCache, SaveCheckpoint
from dray.node.dra.claim_manager import ClaimManager
from tests.simulation.runs import faults_of, missing_faults, run, seeds

# The layer of the simulation is in the module.
module: Any = checkpoint_file

SEEDS = seeds(range(1, 21))
# Some steps of a run with a crash of the process, and of one with a power cut.
CRASHES = [*(2 * step for step in range(3, 250, 9)), *(2 * step + 1 for step in range(5, 170, 9))]
SEEDS_UNTIL_FOUND = range(1, 60)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_agent_with_faults(seed: int) -> None:
    faults_of("node", seed)


def test_an_agent_that_crashes_once_at_any_step() -> None:
    assert {faults_of("node_crash", seed).total() for seed in CRASHES} == {1}


@pytest.mark.parametrize(("variant", "listed"), [("node", SEEDS), ("node_crash", CRASHES)])
def test_every_fault_happens(variant: str, listed: list[int]) -> None:
    assert not missing_faults(variant, listed)


def test_a_seed_replays_exactly() -> None:
    assert run("node", 3) == run("node", 3)


# --- broken agents are found ---


def found(variant: str = "node") -> str:
    return next((outcome.violation for seed in SEEDS_UNTIL_FOUND if (outcome := run(variant, seed)).violation), "")


def test_a_checkpoint_that_is_not_atomic_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It overwrites the file in place."""

    def replace(self: CheckpointFile, content: bytes) -> None:
        descriptor = module.os.open(self._path, module.os.O_WRONLY | module.os.O_CREAT, 0o600)
        try:
            module._write(descriptor, content)
            module.os.fdatasync(descriptor)
        finally:
            module.os.close(descriptor)
        module.sync_folder(self._folder)

    monkeypatch.setattr(CheckpointFile, "replace", replace)
    assert "corrupted" in found()


def test_a_spare_file_that_is_still_the_checkpoint_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that is written next may still be what the directory on disk refers to."""

    def replace(self: CheckpointFile, content: bytes, original: Any = CheckpointFile.replace) -> None:
        sync = module.sync_folder
        module.sync_folder = lambda _folder: None
        try:
            original(self, content)
        finally:
            module.sync_folder = sync

    monkeypatch.setattr(CheckpointFile, "replace", replace)
    assert found()


def test_a_driver_that_is_called_before_the_checkpoint_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash in between leaves a prepared claim that nobody knows."""
    handle = ClaimInfoCache.handle

    def last(self: ClaimInfoCache, event: Any) -> tuple[Any, ...]:
        return tuple(sorted(handle(self, event), key=lambda action: isinstance(action, SaveCheckpoint)))

    async def perform(self: ClaimManager[Any], actions: Any) -> None:
        for action in actions:
            if isinstance(action, SaveCheckpoint):
                await self._save()
            else:
                await self._perform_call(action)

    monkeypatch.setattr(ClaimInfoCache, "handle", last)
    monkeypatch.setattr(ClaimManager, "_perform", perform)
    assert "prepared" in found()


def test_an_assignment_that_is_not_saved_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forget(_self: DeviceManager) -> None:
        return None

    monkeypatch.setattr(DeviceManager, "_save", forget)
    assert found()
