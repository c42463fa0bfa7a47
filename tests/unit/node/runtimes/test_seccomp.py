"""The seccomp profile of containers that ask for `RuntimeDefault`."""

from __future__ import annotations

import pytest

from dray.api.document import Document
from dray.node.runtimes.runc.seccomp import default_profile

pytestmark = pytest.mark.behaviour("ST-75")


def names(profile: Document, action: str = "SCMP_ACT_ALLOW") -> set[str]:
    """The calls that a profile has an action for, whatever their arguments."""
    return {
        name
        for rule in profile["syscalls"]
        if rule["action"] == action and "args" not in rule
        for name in rule["names"]
    }


def test_without_capabilities() -> None:
    profile = default_profile((), "x86_64")
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    assert profile["architectures"][0] == "SCMP_ARCH_X86_64"
    assert {"read", "openat", "rseq", "arch_prctl"} <= names(profile)
    assert not {"mount", "unshare", "reboot", "keyctl", "add_key", "io_uring_setup", "clone", "clone3"} & names(profile)
    # New namespaces are refused; threads are not.
    (clone,) = [rule for rule in profile["syscalls"] if rule["names"] == ["clone"]]
    assert clone["args"] == [{"index": 0, "value": 0x7E020000, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]
    assert names(profile, "SCMP_ACT_ERRNO") == {"clone3"}


@pytest.mark.parametrize(
    ("capability", "allowed"),
    [
        ("CAP_SYS_ADMIN", {"mount", "unshare", "clone", "clone3"}),
        ("CAP_SYS_CHROOT", {"chroot"}),
        ("CAP_SYS_BOOT", {"reboot"}),
    ],
)
def test_capabilities_allow_their_calls(capability: str, allowed: set[str]) -> None:
    assert allowed <= names(default_profile((capability,), "aarch64"))
    assert not allowed & names(default_profile((), "aarch64"))
