"""Which sockets are registered when: the state of sockets, and the scan of a folder."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dray.node.plugins.handler import Plugin
from dray.node.plugins.socket_scan import find_sockets, make_folder
from dray.node.plugins.sockets import RETRY_MAX_SECONDS, Deregister, Register, SocketFile, SocketStates


def at(path: str, identity: int = 1) -> SocketFile:
    return SocketFile(path, (1, identity, identity))


def plugin(path: str) -> Plugin:
    return Plugin("DRAPlugin", f"driver-{path}", path, ("v1.DRAPlugin",), path)


def registered_sockets(*found: SocketFile) -> SocketStates:
    sockets = SocketStates()
    sockets.scanned(found)
    assert sockets.plan(0.0) == tuple(Register(item) for item in sorted(found))
    for item in found:
        sockets.registered(item, plugin(item.path))
    return sockets


@pytest.mark.behaviour("SP-130")
def test_a_removed_socket_is_deregistered() -> None:
    sockets = registered_sockets(at("a"), at("b"))
    sockets.scanned([at("b")])
    assert sockets.plan(1.0) == (Deregister(at("a"), plugin("a")),)
    # Until it is done it is still there, and nothing is planned twice.
    assert sockets.plan(1.0) == ()
    sockets.deregistered(at("a"))
    assert sockets.plugins == (plugin("b"),)


@pytest.mark.behaviour("SP-130")
def test_a_socket_made_again_is_deregistered_then_registered_and_removals_come_first() -> None:
    sockets = registered_sockets(at("b"))
    sockets.scanned([at("a"), at("b", 2)])
    assert sockets.plan(1.0) == (Deregister(at("b"), plugin("b")), Register(at("a")))
    sockets.deregistered(at("b"))
    assert sockets.plan(1.0) == (Register(at("b", 2)),)


@pytest.mark.behaviour("SP-130")
def test_a_socket_made_again_while_it_is_being_registered_is_registered_anew() -> None:
    sockets = SocketStates()
    sockets.scanned([at("a")])
    assert sockets.plan(0.0) == (Register(at("a")),)
    sockets.scanned([at("a", 2)])
    assert sockets.plan(0.0) == ()
    sockets.registered(at("a"), plugin("a"))
    assert sockets.plan(0.0) == (Deregister(at("a"), plugin("a")),)


@pytest.mark.behaviour("SP-128")
def test_a_failed_registration_backs_off_from_half_a_second_to_two_minutes() -> None:
    sockets = SocketStates()
    sockets.scanned([at("a")])
    now, delays = 0.0, []
    for _ in range(12):
        assert sockets.plan(now) == (Register(at("a")),)
        delays.append(sockets.failed(at("a"), now))
        assert sockets.plan(now + delays[-1] - 0.01) == ()
        assert sockets.next_due() == now + delays[-1]
        now += delays[-1]
    assert delays[:4] == [0.5, 1.0, 2.0, 4.0]
    assert delays[-1] == RETRY_MAX_SECONDS


def test_a_new_socket_does_not_inherit_the_backoff_of_the_old_one() -> None:
    sockets = SocketStates()
    sockets.scanned([at("a")])
    sockets.plan(0.0)
    sockets.failed(at("a"), 0.0)
    sockets.scanned([at("a", 2)])
    assert sockets.plan(0.0) == (Register(at("a", 2)),)


def test_what_the_table_lacks_is_a_bug() -> None:
    sockets = registered_sockets(at("a"))
    with pytest.raises(AssertionError, match="succeeded while a is registered"):
        sockets.registered(at("a"), plugin("a"))


@contextmanager
def listening(path: Path) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))
        yield


@pytest.mark.behaviour("SP-126")
def test_the_scan_finds_sockets_below_the_folder_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Relative paths: those of the test's folder are longer than a socket's may be.
    monkeypatch.chdir(tmp_path)
    folder = Path("registry")
    make_folder(str(folder))
    assert folder.stat().st_mode & 0o777 == 0o755
    (folder / "sub").mkdir()
    (folder / ".hidden").mkdir()
    (folder / "plain.sock").touch()
    (folder / "link.sock").symlink_to(folder / "a.sock")
    with (
        listening(folder / "a.sock"),
        listening(folder / ".b.sock"),
        listening(folder / "sub" / "c.sock"),
        listening(folder / ".hidden" / "d.sock"),
    ):
        found = find_sockets(str(folder))
    assert [item.path for item in found] == ["registry/a.sock", "registry/sub/c.sock"]


@pytest.mark.behaviour("SP-130")
def test_a_socket_made_again_has_another_identity_and_a_mode_changed_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with listening(Path("a.sock")):
        (before,) = find_sockets(".")
        Path("a.sock").chmod(0o600)
        assert find_sockets(".") == (before,)
        Path("a.sock").unlink()
    with listening(Path("a.sock")):
        (after,) = find_sockets(".")
    assert after.path == before.path
    assert after != before


def test_a_missing_folder_has_no_sockets(tmp_path: Path) -> None:
    assert find_sockets(str(tmp_path / "none")) == ()
