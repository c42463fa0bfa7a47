"""Images are pulled from a registry on loopback: policies, credentials, digests, and registries that fail."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from dray.node.runtimes.images.garbage_collector import bytes_to_free, removable
from dray.node.runtimes.images.layers import chain_ids, mount_overlay
from dray.node.runtimes.images.manifests import choose
from dray.node.runtimes.images.model import ImageError, StoredImage
from dray.node.runtimes.images.puller import ImagePuller
from dray.node.runtimes.images.references import (
    Credentials,
    Keyring,
    default_policy,
    parse_challenge,
    parse_reference,
    read_keyring,
)
from dray.node.runtimes.images.registry import RegistrySettings, read_settings
from dray.node.runtimes.images.store import ImageStore
from dray.node.runtimes.runtime import Image, ImageFailure, ImageRequest, Sandbox
from tests.image_registry import OCI_INDEX, OCI_MANIFEST, Registry, digest_of, serving, tar_of

SANDBOX = Sandbox("uid", "ns", "pod", "pod", "/logs")
FILES = {"bin/": None, "bin/tool": b"tool", "etc/": None, "etc/passwd": b"root:x:0:0::/:/bin/sh\n"}


class ImmediateClock:
    """A clock whose sleeps return at once."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def now(self) -> Any:
        raise AssertionError("no test reads it")

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def timer(self, _seconds: float) -> Any:
        raise AssertionError("no test uses it")


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serving() as found:
        yield found


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture(params=[False, pytest.param(True, marks=needs_root)], ids=["whole", "layers"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ImageStore:
    """A store of whole images, as without root, and one of layers that images share."""
    return ImageStore(tmp_path / "images", shares_layers=request.param)


def visible(store: ImageStore, image: StoredImage) -> list[str]:
    """The names that a container of the image sees."""
    folders = store.folders(image)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for part in ("upper", "work", "root"):
            (root / part).mkdir()
        if len(folders) == 1:
            return sorted(str(path.relative_to(folders[0])) for path in folders[0].rglob("*"))
        mount_overlay(folders, str(root / "upper"), str(root / "work"), str(root / "root"))
        try:
            return sorted(str(path.relative_to(root / "root")) for path in (root / "root").rglob("*"))
        finally:
            subprocess.run(["umount", str(root / "root")], check=True)


def puller_of(store: ImageStore, **options: Any) -> ImagePuller:
    return ImagePuller(store, ImmediateClock(), **options)


async def ensure(
    puller: ImagePuller, image: str, policy: str = "IfNotPresent", credentials: Any = ()
) -> tuple[Image, list[tuple[str, str]]]:
    events: list[tuple[str, str]] = []
    request = ImageRequest(image, policy, SANDBOX, tuple(credentials), lambda *event: events.append(event))
    return await puller.ensure(request), events


def docker_config(host: str, user: str = "me", password: str = "secret") -> dict[str, Any]:
    return {"auths": {host: {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}}}


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if not path.is_dir() and path.name != ".lock"]


# --- Names and credentials. ---


@pytest.mark.behaviour("IM-01")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("busybox", "docker.io/library/busybox:latest"),
        ("org/tool:1", "docker.io/org/tool:1"),
        ("localhost/tool", "localhost/tool:latest"),
        ("host.example:5000/a/b:v2", "host.example:5000/a/b:v2"),
        (f"tool:1@sha256:{'0' * 64}", f"docker.io/library/tool@sha256:{'0' * 64}"),
    ],
)
def test_references(text: str, expected: str) -> None:
    assert str(parse_reference(text)) == expected


@pytest.mark.behaviour("IM-01")
@pytest.mark.parametrize(
    "text", ["", "Upper/Case", "a b", "tool:", "tool@sha256:12", "a//b", f"tool:{'x' * 129}", "../x"]
)
def test_names_that_no_image_can_have(text: str) -> None:
    with pytest.raises(ImageError, match="invalid reference format"):
        parse_reference(text)


@pytest.mark.behaviour("IM-01")
def test_docker_hub_has_a_host_of_its_own_for_the_api() -> None:
    assert parse_reference("busybox").api_host == "registry-1.docker.io"


@pytest.mark.behaviour("IM-02")
def test_the_policy_of_a_container_without_one() -> None:
    assert [default_policy(image) for image in ("tool", "tool:latest", "tool:1", f"tool@sha256:{'0' * 64}")] == [
        "Always",
        "Always",
        "IfNotPresent",
        "IfNotPresent",
    ]


@pytest.mark.behaviour("IM-08")
def test_the_most_specific_credentials_come_first() -> None:
    documents = [
        docker_config("host.example", "host"),
        docker_config("https://host.example/v1/", "old"),
        docker_config("host.example/team", "team"),
        docker_config("*.example", "glob"),
        docker_config("other.example", "other"),
        {"host.example/team/tool": {"username": "plain", "password": "p"}},
        {"auths": {"host.example": {"auth": "not base64"}, "broken": "no mapping"}},
    ]
    found = read_keyring(documents).lookup(parse_reference("host.example/team/tool:1"))
    assert [item.username for item in found] == ["plain", "team", "host", "old", "glob"]
    assert read_keyring([docker_config("https://index.docker.io/v1/", "hub")]).lookup(parse_reference("busybox"))


def test_challenges() -> None:
    found = parse_challenge('Bearer realm="https://x/token",service="s",scope="repository:a/b:pull,push"')
    assert found.scheme == "bearer"
    assert found.parameters == {"realm": "https://x/token", "service": "s", "scope": "repository:a/b:pull,push"}


@pytest.mark.behaviour("IM-10")
def test_registry_settings() -> None:
    found = read_settings({"host.example": {"mirrors": ["http://mirror"], "insecure": True}})
    assert found == {"host.example": RegistrySettings(("http://mirror",), insecure=True)}
    wrongs: list[Any] = [
        [],
        *({"host": item} for item in ({"mirror": "x"}, {"mirrors": "x"}, {"mirrors": ["ftp://x"]})),
    ]
    for wrong in wrongs:
        with pytest.raises(ValueError, match=r"registries|scheme"):
            read_settings(wrong)


# --- Pulls. ---


@pytest.mark.behaviour("IM-02", "IM-03", "IM-06", "IM-12", "IM-16")
async def test_an_image_is_pulled_once_and_is_there_afterwards(registry: Registry, store: ImageStore) -> None:
    digest = registry.add_image(
        "team/tool", tar_of(FILES), tag="1", config={"Entrypoint": ["/bin/tool"], "Env": ["A=b"]}
    )
    puller = puller_of(store)
    name = f"{registry.host}/team/tool:1"
    image, events = await ensure(puller, name)
    assert image == Image(name, f"{registry.host}/team/tool@{digest}")
    assert events[0] == ("Pulling", f'Pulling image "{name}"')
    reason, message = events[1]
    assert reason == "Pulled"
    assert message.startswith(f'Successfully pulled image "{name}" in 0ms (0ms including waiting). Image size: ')
    stored = store.find(name)
    assert stored is not None
    assert store.read(stored, "bin/tool") == b"tool"
    assert (stored.config.entrypoint, stored.config.env) == (("/bin/tool",), ("A=b",))
    assert stored.size == len(b"tool") + len(FILES["etc/passwd"] or b"")
    asked = len(registry.requests)
    again, events = await ensure(puller, name)
    assert again.id == image.id
    assert [reason for reason, _ in events] == ["Pulled"]
    assert "already present on machine" in events[0][1]
    assert len(registry.requests) == asked


@pytest.mark.behaviour("IM-02")
async def test_always_asks_the_registry_and_fetches_only_what_changed(registry: Registry, store: ImageStore) -> None:
    registry.add_image("tool", tar_of(FILES))
    puller, name = puller_of(store), f"{registry.host}/tool"
    first, _ = await ensure(puller, name, "Always")
    registry.requests.clear()
    second, _ = await ensure(puller, name, "Always")
    assert second == first
    assert registry.requests == ["/v2/tool/manifests/latest"]
    registry.add_image("tool", tar_of({**FILES, "bin/tool": b"new"}))
    third, _ = await ensure(puller, name, "Always")
    assert third.id != first.id
    registry.failures.extend([503] * 4)
    with pytest.raises(ImageFailure) as failure:
        await ensure(puller, name, "Always")
    assert failure.value.reason == "RegistryUnavailable"


@pytest.mark.behaviour("IM-02")
async def test_an_imported_image_is_used_whatever_the_policy(
    registry: Registry, store: ImageStore, tmp_path: Path
) -> None:
    (tmp_path / "root").mkdir()
    name = f"{registry.host}/tool"
    store.import_path(tmp_path / "root", name)
    image, events = await ensure(puller_of(store), name, "Always")
    assert image.id.startswith("sha256:")
    assert [reason for reason, _ in events] == ["Pulled"]
    assert registry.requests == []


@pytest.mark.behaviour("IM-02")
async def test_never_pulls(registry: Registry, store: ImageStore) -> None:
    registry.add_image("tool", tar_of(FILES))
    name = f"{registry.host}/tool"
    with pytest.raises(
        ImageFailure, match=f'Container image "{name}" is not present with pull policy of Never'
    ) as failure:
        await ensure(puller_of(store), name, "Never")
    assert failure.value.reason == "ErrImageNeverPull"
    assert registry.requests == []


@pytest.mark.behaviour("IM-01")
async def test_a_name_that_cannot_be_parsed(store: ImageStore) -> None:
    with pytest.raises(ImageFailure, match='Failed to apply default image tag "A B": couldn\'t parse') as failure:
        await ensure(puller_of(store), "A B")
    assert failure.value.reason == "InvalidImageName"


@pytest.mark.behaviour("IM-05")
async def test_containers_that_want_the_same_image_share_a_pull(registry: Registry, store: ImageStore) -> None:
    registry.add_image("tool", tar_of(FILES))
    puller, name = puller_of(store), f"{registry.host}/tool"
    await asyncio.gather(*(ensure(puller, name) for _ in range(5)))
    assert sum("/blobs/" in path for path in registry.requests) == 2


@pytest.mark.behaviour("IM-06")
async def test_errors_of_the_registry_are_shown(registry: Registry, store: ImageStore) -> None:
    with pytest.raises(ImageFailure, match="manifest unknown: manifest unknown") as failure:
        await ensure(puller_of(store), f"{registry.host}/nothing:1")
    assert failure.value.reason == "ErrImagePull"


@pytest.mark.behaviour("IM-06")
async def test_an_overloaded_registry_is_asked_again(registry: Registry, store: ImageStore) -> None:
    registry.add_image("tool", tar_of(FILES))
    registry.failures.extend([429, 500, 503])
    clock = ImmediateClock()
    puller = ImagePuller(store, clock)
    await ensure(puller, f"{registry.host}/tool")
    assert clock.slept == [0.5, 1.0, 2.0]


@pytest.mark.behaviour("IM-06")
@pytest.mark.parametrize("ranges", [True, False])
async def test_a_broken_download_continues(registry: Registry, store: ImageStore, *, ranges: bool) -> None:
    content = bytes(range(256)) * 400
    registry.add_image("tool", tar_of({"data": content}), compress=lambda data: data)
    registry.ranges = ranges
    # The first blob is the configuration, which is not continued.
    puller, name = puller_of(store), f"{registry.host}/tool"
    original = registry.blobs.copy()
    registry.breaks = []
    layer = max(original, key=lambda digest: len(original[digest]))

    class Breaking(dict[str, bytes]):
        """Breaks the first downloads of the layer."""

        def __getitem__(self, digest: str) -> bytes:
            if digest == layer and len(broken) < 2:
                broken.append(digest)
                registry.breaks.append(30_000)
            return super().__getitem__(digest)

    broken: list[str] = []
    registry.blobs = Breaking(original)
    await ensure(puller, name)
    stored = store.find(name)
    assert stored is not None
    assert store.read(stored, "data") == content
    assert len(broken) == 2


@pytest.mark.behaviour("IM-06")
async def test_credentials_do_not_follow_a_redirect_to_another_host(registry: Registry, store: ImageStore) -> None:
    registry.user, registry.basic = "me:secret", True
    registry.add_image("tool", tar_of(FILES))
    with serving() as storage:
        storage.blobs = registry.blobs
        registry.redirect = f"http://{storage.host}"
        await ensure(puller_of(store), f"{registry.host}/tool", credentials=[docker_config(registry.host)])
        assert storage.requests
        assert set(storage.seen_authorizations) == {""}


@pytest.mark.behaviour("IM-07", "IM-08")
@pytest.mark.parametrize("basic", [True, False])
async def test_credentials_of_the_pod_are_used(registry: Registry, store: ImageStore, *, basic: bool) -> None:
    registry.user, registry.basic = "me:secret", basic
    registry.add_image("tool", tar_of(FILES))
    name = f"{registry.host}/tool"
    with pytest.raises(ImageFailure, match=r"unauthorized: authentication required|denied: wrong password"):
        await ensure(puller_of(store), name)
    wrong, right = docker_config(f"{registry.host}/tool", password="wrong"), docker_config(registry.host)
    await ensure(puller_of(store), name, credentials=[wrong, right])
    assert store.find(name) is not None
    # One token serves all requests of a pull.
    assert sum("/token" in path for path in registry.requests) == (0 if basic else 3)


@pytest.mark.behaviour("IM-08")
async def test_credentials_of_the_node_are_used_after_those_of_the_pod(registry: Registry, store: ImageStore) -> None:
    registry.user, registry.basic = "me:secret", True
    registry.add_image("tool", tar_of(FILES))
    puller = puller_of(store, keyring=read_keyring([docker_config(registry.host)]))
    await ensure(puller, f"{registry.host}/tool")


@pytest.mark.behaviour("IM-09")
async def test_an_image_pulled_with_a_secret_is_not_there_for_others(registry: Registry, store: ImageStore) -> None:
    registry.user, registry.basic = "me:secret", True
    registry.add_image("tool", tar_of(FILES))
    puller, name = puller_of(store), f"{registry.host}/tool"
    await ensure(puller, name, credentials=[docker_config(registry.host)])
    asked = len(registry.requests)
    await ensure(puller, name, credentials=[docker_config(registry.host)])
    assert len(registry.requests) == asked
    with pytest.raises(ImageFailure, match="unauthorized"):
        await ensure(puller, name)
    with pytest.raises(ImageFailure):
        await ensure(puller, name, "Never")
    # The registry is open now: a check without credentials makes the image available to all.
    registry.user = ""
    await ensure(puller, name)
    asked = len(registry.requests)
    await ensure(puller, name)
    assert len(registry.requests) == asked


@pytest.mark.behaviour("IM-10")
async def test_mirrors_are_asked_first(registry: Registry, store: ImageStore) -> None:
    with serving() as mirror:
        mirror.add_image("tool", tar_of(FILES))
        settings = {registry.host: RegistrySettings((f"http://{mirror.host}",))}
        await ensure(puller_of(store, registries=settings), f"{registry.host}/tool")
        assert mirror.requests
        assert registry.requests == []
    registry.add_image("other", tar_of(FILES))
    await ensure(puller_of(store, registries=settings), f"{registry.host}/other")
    assert registry.requests


@pytest.mark.behaviour("IM-11")
async def test_the_image_of_this_platform_is_chosen(registry: Registry, store: ImageStore) -> None:
    digest = registry.add_image("tool", tar_of(FILES), tag="one")
    entry = {"digest": digest, "size": 1, "mediaType": OCI_MANIFEST}
    unknown = {"os": "unknown", "architecture": "unknown"}
    platforms = [{"os": "linux", "architecture": name} for name in ("amd64", "arm64")]
    entries = [{**entry, "platform": item} for item in (unknown, *platforms)]
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries}
    top = registry.add_manifest("tool", index, OCI_INDEX, "all")
    image, _ = await ensure(puller_of(store), f"{registry.host}/tool:all")
    assert image.id == f"{registry.host}/tool@{top}"
    with pytest.raises(ImageError, match="no match for platform in manifest"):
        choose({"manifests": [{**entry, "platform": unknown}]})
    variant = {**entry, "platform": {"os": "linux", "architecture": "arm64", "variant": "v8"}}
    assert choose({"manifests": [variant]}, "aarch64").digest == digest


@pytest.mark.behaviour("IM-12")
@pytest.mark.parametrize("fault", ["blob", "short", "long", "manifest", "config", "diff-id"])
async def test_a_registry_that_lies_is_refused_and_leaves_nothing(
    registry: Registry, store: ImageStore, tmp_path: Path, fault: str
) -> None:
    registry.add_image("tool", tar_of(FILES))
    media_type, manifest = registry.manifests["tool", "latest"]
    document = json.loads(manifest)
    layer, config = document["layers"][0]["digest"], document["config"]["digest"]
    if fault == "blob":
        registry.blobs[layer] = bytes(len(registry.blobs[layer]))
    elif fault == "short":
        registry.blobs[layer] = registry.blobs[layer][:-1]
    elif fault == "long":
        registry.blobs[layer] += b"x"
    elif fault == "config":
        registry.blobs[config] = registry.blobs[config].replace(b"amd64", b"arm64")
    elif fault == "diff-id":
        content = registry.blobs[config].replace(digest_of(tar_of(FILES)).encode(), digest_of(b"").encode())
        registry.blobs[digest_of(content)] = content
        document["config"] |= {"digest": digest_of(content), "size": len(content)}
        registry.add_manifest("tool", document, media_type, "latest")
    else:
        asked = f"sha256:{'0' * 64}"
        registry.manifests["tool", asked] = (media_type, manifest)
        with pytest.raises(ImageFailure, match="unexpected digest"):
            await ensure(puller_of(store), f"{registry.host}/tool@{asked}")
        return
    with pytest.raises(ImageFailure, match=r"unexpected digest|failed size validation") as failure:
        await ensure(puller_of(store), f"{registry.host}/tool")
    assert failure.value.reason == "ErrImagePull"
    assert store.all() == ()
    assert files_below(tmp_path) == []


@pytest.mark.behaviour("IM-13")
async def test_layers_with_zstd_and_without_compression(registry: Registry, store: ImageStore) -> None:
    registry.add_image("zstd", tar_of(FILES), compress=zstandard.ZstdCompressor().compress)
    registry.add_image("plain", tar_of({"own": b"1"}), compress=lambda data: data)
    for name in ("zstd", "plain"):
        await ensure(puller_of(store), f"{registry.host}/{name}")
    foreign = json.loads(registry.manifests["plain", "latest"][1])
    foreign["layers"][0]["mediaType"] = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"
    registry.add_manifest("foreign", foreign, OCI_MANIFEST, "latest")
    with pytest.raises(ImageFailure, match="unsupported layer media type"):
        await ensure(puller_of(store), f"{registry.host}/foreign")


@pytest.mark.behaviour("IM-05")
@pytest.mark.parametrize("place", ["manifest", "missing manifest", "configuration", "layer"])
async def test_a_registry_that_hangs_is_given_up(
    registry: Registry, store: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr("dray.node.runtimes.images.registry.STALL_SECONDS_MAX", 0.1)
    digest = registry.add_image("tool", tar_of(FILES))
    manifest = json.loads(registry.manifests["tool", digest][1])
    registry.hangs_at = {
        "manifest": "/manifests/",
        "missing manifest": "/manifests/",
        "configuration": manifest["config"]["digest"],
        "layer": manifest["layers"][0]["digest"],
    }[place]
    name = f"{registry.host}/tool" + (":none" if place == "missing manifest" else "")
    try:
        with pytest.raises(ImageFailure, match="timed out") as failure:
            await ensure(puller_of(store), name)
    finally:
        registry.released.set()
    assert failure.value.reason == "RegistryUnavailable"
    assert store.all() == ()
    assert files_below(tmp_path) == []


@pytest.mark.behaviour("IM-14")
async def test_whiteouts_remove_lower_content_only(registry: Registry, store: ImageStore) -> None:
    lower = tar_of({"keep/": None, "keep/old": b"1", "gone": b"1", "folder/": None, "folder/a": b"1"})
    # The opaque mark comes after an entry of its own layer, which stays.
    upper = tar_of({"keep/new": b"2", "keep/.wh..wh..opq": b"", ".wh.gone": b"", "folder/.wh.a": b""})
    registry.add_image("tool", lower, upper)
    await ensure(puller_of(store), f"{registry.host}/tool")
    stored = store.find(f"{registry.host}/tool")
    assert stored is not None
    assert visible(store, stored) == ["folder", "keep", "keep/new"]


@pytest.mark.behaviour("IM-14")
async def test_names_never_leave_the_root(registry: Registry, store: ImageStore, tmp_path: Path) -> None:
    registry.add_image("tool", tar_of({"../../escaped": b"1"}))
    with pytest.raises(ImageFailure, match="outside the destination"):
        await ensure(puller_of(store), f"{registry.host}/tool")
    assert not [path for path in files_below(tmp_path) if path.name == "escaped"]


async def test_a_manifest_that_is_too_large_is_refused(registry: Registry, store: ImageStore) -> None:
    registry.add_manifest("tool", {"padding": "x" * 5_000_000}, OCI_MANIFEST, "latest")
    with pytest.raises(ImageFailure, match="larger than"):
        await ensure(puller_of(store), f"{registry.host}/tool")


async def test_a_decompression_error_is_no_crash(registry: Registry, store: ImageStore) -> None:
    registry.add_image("tool", tar_of(FILES), compress=lambda data: gzip.compress(data)[:-20])
    with pytest.raises(ImageFailure, match="a layer"):
        await ensure(puller_of(store), f"{registry.host}/tool")


# --- Shared layers. ---


@needs_root
@pytest.mark.behaviour("IM-02", "IM-15", "IM-17")
async def test_layers_are_fetched_and_kept_once(registry: Registry, tmp_path: Path) -> None:
    base = tar_of({"etc/": None, "etc/passwd": b"app:x:7:8::/:/bin/sh\n", "lib/": None, "lib/a": b"1", "old": b"1"})
    registry.add_image("one", base, tar_of({"lib/b": b"22", ".wh.old": b""}), config={"User": "app"})
    registry.add_image("two", base, tar_of({"lib/.wh.a": b"", "lib/c": b"333"}))
    store = ImageStore(tmp_path / "images")
    puller = puller_of(store)
    await ensure(puller, f"{registry.host}/one")
    asked = len([path for path in registry.requests if "/blobs/" in str(path)])
    await ensure(puller, f"{registry.host}/two")
    # Its configuration and its own layer.
    assert len([path for path in registry.requests if "/blobs/" in str(path)]) == asked + 2
    one, two = (store.find(f"{registry.host}/{name}") for name in ("one", "two"))
    assert one is not None
    assert two is not None
    assert one.layers[0] == two.layers[0]
    assert visible(store, one) == ["etc", "etc/passwd", "lib", "lib/a", "lib/b"]
    assert visible(store, two) == ["etc", "etc/passwd", "lib", "lib/c", "old"]
    assert store.user(one) == (7, 8)
    assert store.read(one, "old") == b""
    folder = tmp_path / "images" / "layers"
    assert len([path for path in folder.iterdir() if path.is_dir()]) == 3
    # A layer that another image has stays, and one of an image that is being added as well.
    with store.layers.kept():
        assert store.delete(one) == 0
    store.remove_leftovers(0.0)
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == sorted(
        identifier.partition(":")[2] for identifier in two.layers
    )
    assert store.delete(two) == two.size
    assert not [path for path in folder.iterdir() if path.is_dir()]


@needs_root
@pytest.mark.behaviour("IM-12", "IM-15")
def test_nothing_is_left_of_a_layer_that_is_wrong_or_was_interrupted(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "images")
    layer = tmp_path / "layer.tar"
    layer.write_bytes(tar_of(FILES))
    diff_id = f"sha256:{hashlib.sha256(layer.read_bytes()).hexdigest()}"
    wrong = f"sha256:{'0' * 64}"
    config = {"rootfs": {"diff_ids": [diff_id, wrong]}}
    with pytest.raises(ImageError, match="unexpected digest"):
        store.add([layer, layer], config, "sha256:1", ("tool",))
    assert store.missing_layers(config, 2) == [False, True]
    # What a killed process leaves: a mounted folder without a record.
    place = tmp_path / "images" / "layers" / ".unpack-x"
    for part in ("diff", "work", "merged"):
        (place / part).mkdir(parents=True)
    mount_overlay(store.layers.contents([diff_id]), *(str(place / part) for part in ("diff", "work", "merged")))
    store.remove_leftovers(time.time() + 1)
    assert [path.name for path in place.parent.iterdir()] == [".lock"]
    assert str(place) not in Path("/proc/self/mounts").read_text()


def test_chain_ids() -> None:
    second = f"sha256:{hashlib.sha256(b'a b').hexdigest()}"
    assert chain_ids(["a", "b"]) == ("a", second)
    assert chain_ids(["a", "b", "c"])[2] == f"sha256:{hashlib.sha256(f'{second} c'.encode()).hexdigest()}"


# --- Garbage collection. ---


def image_used(identifier: str, used: float, size: int = 10) -> StoredImage:
    return StoredImage(f"sha256:{identifier}", (f"name/{identifier}:1",), size=size, last_used=used)


@pytest.mark.behaviour("IM-17")
def test_the_longest_unused_images_go_first() -> None:
    images = [image_used("new", 990.0), image_used("c", 300.0), image_used("a", 100.0), image_used("b", 200.0)]
    chosen = removable(images, {"name/a:1"}, 1000.0)
    assert [image.id for image in chosen] == ["sha256:b", "sha256:c"]


@pytest.mark.behaviour("IM-17")
def test_thresholds_of_the_disk() -> None:
    assert bytes_to_free(1000, 160) == 0
    assert bytes_to_free(1000, 150) == 50


def test_an_empty_keyring_has_nothing() -> None:
    assert Keyring().lookup(parse_reference("tool")) == []
    assert Credentials("a", "b").fingerprint("h") != Credentials("a", "c").fingerprint("h")
