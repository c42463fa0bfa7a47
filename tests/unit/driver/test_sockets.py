"""Names of a driver's sockets."""

from __future__ import annotations

import pytest

from dray.driver.sockets import registration_socket, service_socket

REGISTRY = "/var/lib/kubelet/plugins_registry"
UID = "0123456789-0123-0123-0123-0123456789"


@pytest.mark.behaviour("N-148")
def test_registration_sockets_without_rolling_updates_and_with_room() -> None:
    assert registration_socket(REGISTRY, "gpu.example.com") == f"{REGISTRY}/gpu.example.com-reg.sock"
    assert registration_socket(REGISTRY, "gpu.example.com", UID) == f"{REGISTRY}/gpu.example.com-{UID}-reg.sock"


@pytest.mark.behaviour("N-148")
def test_a_long_name_has_the_hash_of_the_uid_then_of_both() -> None:
    driver = "d" * 30
    # base64url(sha256(uid)[:8]) and base64url(sha256(driver NUL uid)[:16]), computed with coreutils.
    assert registration_socket(REGISTRY, driver, UID) == f"{REGISTRY}/{driver}-jVevGGXOdOk-reg.sock"
    assert registration_socket(REGISTRY, "d" * 63, UID) == f"{REGISTRY}/dra-FBnq1fAbXX-AvETGUO55Mg-reg.sock"
    assert registration_socket(REGISTRY, "d" * 63, "other") != registration_socket(REGISTRY, "d" * 63, UID)


@pytest.mark.behaviour("N-148")
@pytest.mark.parametrize("length", [1, 20, 40, 63])
def test_every_driver_name_fits_with_the_usual_folders(length: int) -> None:
    driver = "d" * length
    assert len(registration_socket(REGISTRY, driver, UID)) <= 107
    assert len(service_socket(f"/var/lib/kubelet/plugins/{driver}", UID)) <= 107
