"""What the agent decides about images of a CRI runtime: policies, credentials, events, and what goes."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from dray.node.runtimes.cri.images import (
    CriImages,
    KnownImage,
    PullRecords,
    bytes_to_free,
    format_duration,
    removable,
    sandbox_images,
)
from dray.node.runtimes.cri.translate import has_systemd_cgroups, with_image_user
from dray.node.runtimes.image_references import read_keyring
from dray.node.runtimes.runtime import ImageFailure, ImageRequest, RuntimeFailure, Sandbox, Security
from dray.rpc.pb.cri.v1 import api_pb2 as pb
from dray.runtime.system import SystemClock

SANDBOX = Sandbox("u", "ns", "p", "p", "/logs")
NAME = "r.test/a:1"


class Clock(SystemClock):
    """Time that passes by hand."""

    seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds


@dataclass
class ImageService:
    """The image service of a runtime, whose registry wants a password."""

    password: str = ""
    failure: str = "401 Unauthorized"
    present: dict[str, pb.Image] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    at_once: int = 0
    at_once_max: int = 0

    async def ImageStatus(self, request: pb.ImageStatusRequest, **_: Any) -> pb.ImageStatusResponse:  # noqa: N802
        return pb.ImageStatusResponse(image=self.present.get(request.image.image))

    async def PullImage(self, request: pb.PullImageRequest, **_: Any) -> pb.PullImageResponse:  # noqa: N802
        self.asked.append((request.auth.username, request.auth.password))
        self.at_once += 1
        self.at_once_max = max(self.at_once, self.at_once_max)
        await asyncio.sleep(0)
        self.at_once -= 1
        if request.auth.password != self.password:
            empty = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(grpc.StatusCode.UNKNOWN, empty, empty, self.failure, None)
        name = request.image.image
        self.present[name] = pb.Image(id=f"sha256:{name}", repo_tags=[name], size=7)
        return pb.PullImageResponse(image_ref=f"sha256:{name}")

    async def ListImages(self, _request: Any, **_: Any) -> pb.ListImagesResponse:  # noqa: N802
        return pb.ListImagesResponse(images=self.present.values())

    async def RemoveImage(self, request: pb.RemoveImageRequest, **_: Any) -> pb.RemoveImageResponse:  # noqa: N802
        self.removed.append(request.image.image)
        self.present = {key: image for key, image in self.present.items() if image.id != request.image.image}
        return pb.RemoveImageResponse()

    async def ImageFsInfo(self, _request: Any, **_: Any) -> pb.ImageFsInfoResponse:  # noqa: N802
        place = pb.FilesystemIdentifier(mountpoint="/images")
        return pb.ImageFsInfoResponse(image_filesystems=[pb.FilesystemUsage(fs_id=place)])


def passwords(*texts: str) -> tuple[dict[str, Any], ...]:
    return tuple({"auths": {"r.test": {"username": "u", "password": text}}} for text in texts)


def request(policy: str, *given: str, image: str = NAME, events: list[str] | None = None) -> ImageRequest:
    def report(reason: str, _message: str) -> None:
        if events is not None:
            events.append(reason)

    return ImageRequest(image, policy, SANDBOX, passwords(*given), report)


async def refusal(images: CriImages, wanted: ImageRequest) -> tuple[str, str]:
    with pytest.raises(ImageFailure) as caught:
        await images.ensure(wanted)
    return caught.value.reason, str(caught.value)


@pytest.mark.behaviour("IM-01", "IM-02", "IM-08")
async def test_policies_and_credentials(tmp_path: Path) -> None:
    service, events = ImageService("right"), list[str]()
    images = CriImages(service, Clock(), PullRecords(tmp_path / "pulled"))
    never = f'Container image "{NAME}" is not present with pull policy of Never'
    assert await refusal(images, request("Never", "right")) == ("ErrImageNeverPull", never)
    failed = f'Failed to pull image "{NAME}": 401 Unauthorized'
    assert await refusal(images, request("IfNotPresent", events=events)) == ("ErrImagePull", failed)
    assert await refusal(images, request("IfNotPresent", "wrong", events=events)) == ("ErrImagePull", failed)
    assert service.asked == [("", ""), ("u", "wrong")]
    await images.ensure(request("IfNotPresent", "wrong", "right", events=events))
    assert service.asked[2:] == [("u", "wrong"), ("u", "right")]
    await images.ensure(request("Always", "right", events=events))
    assert events == ["Pulling", "Pulling", "Pulling", "Pulled", "Pulling", "Pulled"]
    assert (await refusal(images, request("Always", image="UPPER:1")))[0] == "InvalidImageName"


@pytest.mark.behaviour("IM-08")
async def test_credentials_of_the_node_come_after_those_of_the_pod(tmp_path: Path) -> None:
    service = ImageService("node's")
    keyring = read_keyring(passwords("node's"))
    images = CriImages(service, Clock(), PullRecords(tmp_path / "pulled"), keyring=keyring)
    await images.ensure(request("IfNotPresent", "pod's"))
    assert service.asked == [("u", "pod's"), ("u", "node's")]


@pytest.mark.behaviour("IM-09")
async def test_an_image_pulled_with_a_secret_is_not_there_for_others(tmp_path: Path) -> None:
    service, events = ImageService("right"), list[str]()
    await CriImages(service, Clock(), PullRecords(tmp_path / "pulled")).ensure(request("IfNotPresent", "right"))
    # Also after a restart of the agent.
    images = CriImages(service, Clock(), PullRecords(tmp_path / "pulled"))
    assert (await refusal(images, request("IfNotPresent")))[0] == "ErrImagePull"
    assert (await refusal(images, request("Never")))[0] == "ErrImageNeverPull"
    await images.ensure(request("IfNotPresent", "right", events=events))
    assert events == ["Pulled"]
    # What can be pulled without credentials is for all from then on.
    service.password = ""
    await images.ensure(request("IfNotPresent"))
    await images.ensure(request("Never", events=events))
    assert (tmp_path / "pulled").stat().st_mode & 0o777 == 0o600
    (tmp_path / "pulled").write_text("{")
    with pytest.raises(RuntimeFailure, match="remove it"):
        PullRecords(tmp_path / "pulled")


@pytest.mark.behaviour("IM-04")
@pytest.mark.parametrize(
    ("failure", "message"),
    [
        ("RegistryUnavailable: EOF", f"image pull failed for {NAME} because the registry is unavailable: EOF"),
        ("SignatureValidationFailed", f"image pull failed for {NAME} because the signature validation failed"),
    ],
)
async def test_errors_with_a_reason_of_their_own(tmp_path: Path, failure: str, message: str) -> None:
    images = CriImages(ImageService("x", failure), Clock(), PullRecords(tmp_path / "pulled"))
    assert await refusal(images, request("Always")) == (failure.partition(":")[0], message)


@pytest.mark.behaviour("IM-05")
@pytest.mark.parametrize("most", [1, 2])
async def test_few_images_are_pulled_at_the_same_time(tmp_path: Path, most: int) -> None:
    service = ImageService()
    images = CriImages(service, Clock(), PullRecords(tmp_path / "pulled"), pulls_max=most)
    names = [f"r.test/{letter}:1" for letter in "abcd"]
    await asyncio.gather(*(images.ensure(request("IfNotPresent", image=name)) for name in names))
    assert service.at_once_max == most


# --- Garbage collection. ---


def image_used(identifier: str, used: float, *, is_pinned: bool = False) -> KnownImage:
    return KnownImage(f"sha256:{identifier}", (f"name/{identifier}:1",), 10, used, is_pinned)


@pytest.mark.behaviour("IM-17")
def test_the_longest_unused_images_go_first() -> None:
    images = [image_used("new", 990.0), image_used("c", 300.0), image_used("a", 100.0), image_used("b", 200.0)]
    chosen = removable([*images, image_used("pause", 1.0, is_pinned=True)], {"name/a:1"}, 1000.0)
    assert [image.id for image in chosen] == ["sha256:b", "sha256:c"]


@pytest.mark.behaviour("IM-17")
def test_thresholds_of_the_disk() -> None:
    assert bytes_to_free(1000, 160) == 0
    assert bytes_to_free(1000, 150) == 50


@pytest.mark.behaviour("IM-17")
async def test_unused_images_are_removed_while_the_disk_is_nearly_full(tmp_path: Path) -> None:
    service, clock = ImageService("right"), Clock()
    disks = [(100, 10), (100, 10), (100, 10), (100, 50)]
    images = CriImages(service, clock, PullRecords(tmp_path / "pulled"), disk=lambda _path: disks.pop(0))
    for name in ("r.test/a:1", "r.test/b:1"):
        await images.ensure(request("IfNotPresent", "right", image=name))
    warnings: list[str] = []

    async def collect(*in_use: str) -> Sequence[str]:
        before = len(service.removed)
        await images.collect(in_use, lambda reason, _message: warnings.append(reason))
        return service.removed[before:]

    # Too young; then only the one that no container has; and there is no more.
    assert await collect("r.test/a:1") == []
    clock.seconds += 300
    assert await collect("r.test/a:1") == ["sha256:r.test/b:1"]
    assert list(json.loads((tmp_path / "pulled").read_text())) == ["sha256:r.test/a:1", "sha256:r.test/b:1"]
    clock.seconds += 300
    assert await collect("r.test/a:1") == []
    assert list(json.loads((tmp_path / "pulled").read_text())) == ["sha256:r.test/a:1"]
    assert warnings == ["FreeDiskSpaceFailed"] * 3
    assert await collect() == []
    assert len(warnings) == 3


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0123, "12ms"), (1.5, "1.5s"), (60.25, "1m0.25s"), (0.9996, "1000ms"), (12, "12s")]
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


# --- What a runtime tells of itself. ---


def test_the_image_of_sandboxes_and_the_driver_of_cgroups() -> None:
    config = {"sandboxImage": "pause:1", "containerd": {"defaultRuntimeName": "runc", "runtimes": {"runc": {}}}}
    assert sandbox_images({"config": json.dumps(config)}) == ("pause:1",)
    assert sandbox_images({}) == sandbox_images({"config": "["}) == ()
    assert not has_systemd_cgroups("containerd", {"config": json.dumps(config)})
    config["containerd"]["runtimes"]["runc"] = {"options": {"SystemdCgroup": True}}  # type: ignore[index]
    assert has_systemd_cgroups("containerd", {"config": json.dumps(config)})
    assert has_systemd_cgroups("cri-o", {})


@pytest.mark.parametrize(
    ("security", "image", "expected"),
    [
        (Security(user=5), pb.Image(id="i", username="app"), (5, "")),
        (Security(), pb.Image(id="i"), (0, "")),
        (Security(), pb.Image(id="i", uid=pb.Int64Value(value=7)), (7, "")),
        (Security(), pb.Image(id="i", username="app"), (None, "app")),
        (Security(must_not_be_root=True), pb.Image(id="i", uid=pb.Int64Value(value=7)), (7, "")),
        (Security(must_not_be_root=True), pb.Image(id="i"), "image will run as root"),
        (Security(must_not_be_root=True, user=0), pb.Image(id="i"), "image will run as root"),
        (Security(must_not_be_root=True), pb.Image(id="i", username="app"), "non-numeric user (app), cannot verify"),
        (Security(seccomp_localhost="../x"), pb.Image(id="i"), "must be below"),
    ],
)
def test_the_user_of_a_container(security: Security, image: pb.Image, expected: tuple[int | None, str] | str) -> None:
    if isinstance(expected, str):
        with pytest.raises(RuntimeFailure, match=re.escape(expected)):
            with_image_user(security, image, Path("/seccomp"))
    else:
        found = with_image_user(security, image, Path("/seccomp"))
        assert (found.user, found.user_name) == expected


def test_a_seccomp_profile_is_named_by_its_path() -> None:
    found = with_image_user(Security(seccomp_localhost="a/b.json"), pb.Image(id="i"), Path("/var/lib/kubelet/seccomp"))
    assert found.seccomp_localhost == "/var/lib/kubelet/seccomp/a/b.json"
