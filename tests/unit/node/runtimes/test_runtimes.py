"""What runtimes receive: OCI configurations, CRI requests, images, and what the process runtime cannot do."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dray.api.cdi import ContainerEdits
from dray.node.cdi.cache import CdiCache
from dray.node.resource_manager import HostDevice
from dray.node.runtimes.cri.translate import container_config, knows_cdi, record_of, sandbox_config
from dray.node.runtimes.images.model import ImageConfig, ImageError, full_name, parse_user
from dray.node.runtimes.images.store import ImageStore
from dray.node.runtimes.process.limitations import metadata_path, mount_variables, warnings_for
from dray.node.runtimes.process.runtime import ProcessRuntime
from dray.node.runtimes.runc.oci_config import CAPABILITIES, capability_set, default_bind_types, oci_config
from dray.node.runtimes.runtime import (
    BindMount,
    ContainerSpec,
    Limits,
    Propagation,
    RuntimeFailure,
    Sandbox,
    Security,
)
from dray.rpc.pb.cri.v1 import api_pb2 as pb
from dray.runtime.system import SystemClock

SANDBOX = Sandbox("uid", "ns", "p", "p-host", "/logs/ns_p_uid", labels={"app": "x"})
BOUNDING = (*CAPABILITIES, "CAP_SYS_ADMIN")


def spec(**fields: Any) -> ContainerSpec:
    return ContainerSpec(SANDBOX, "a", 2, "busybox", **fields)


def oci(**fields: Any) -> dict[str, Any]:
    user = fields.pop("user", (0, 0))
    return oci_config(
        spec(**fields),
        argv=["sh"],
        image_env=["PATH=/image", "I=1"],
        working_dir="/srv",
        user=user,
        bounding=BOUNDING,
        oom_score_adj=1000,
        etc=[BindMount("/f/hosts", "/etc/hosts")],
    )


# --- runc. ---


def test_the_pods_environment_wins_over_the_images() -> None:
    env = oci(env=[("I", "2"), ("P", "3")])["process"]["env"]
    assert env == ["PATH=/image", "HOSTNAME=p-host", "I=2", "P=3"]


@pytest.mark.behaviour("ST-71")
def test_mounts_of_the_runtime_do_not_appear_on_the_host() -> None:
    shared = (
        BindMount("/sys", "/sys", propagation=Propagation.BIDIRECTIONAL),
        BindMount("/h", "/etc", propagation=Propagation.BIDIRECTIONAL),
    )
    found = [item["destination"] for item in oci(mounts=shared)["mounts"]]
    assert found.count("/sys") == 1
    assert not {"/sys/fs/cgroup", "/etc/hosts"} & set(found)
    assert "/dev/shm" in found


def test_mounts_come_outer_first_and_the_pods_own_hosts_file_wins() -> None:
    mounts = oci(mounts=(BindMount("/h", "/etc/hosts", read_only=True), BindMount("/d", "/data")))["mounts"]
    depths = [item["destination"].rstrip("/").count("/") for item in mounts]
    assert depths == sorted(depths)
    hosts = [item for item in mounts if item["destination"] == "/etc/hosts"]
    assert [(item["source"], item["options"]) for item in hosts] == [("/h", ["rbind", "rprivate", "ro"])]


@pytest.mark.parametrize(
    ("propagation", "option"),
    [(Propagation.NONE, "rprivate"), (Propagation.HOST_TO_CONTAINER, "rslave"), (Propagation.BIDIRECTIONAL, "rshared")],
)
def test_propagation(propagation: Propagation, option: str) -> None:
    mounts = oci(mounts=(BindMount("/h", "/x", propagation=propagation),))["mounts"]
    assert next(item for item in mounts if item["destination"] == "/x")["options"][1] == option


@pytest.mark.parametrize(
    ("security", "expected"),
    [
        (Security(), set(CAPABILITIES)),
        (Security(drop_capabilities=("ALL",)), set()),
        (Security(drop_capabilities=("ALL",), add_capabilities=("net_raw",)), {"CAP_NET_RAW"}),
        (Security(drop_capabilities=("CHOWN",)), set(CAPABILITIES) - {"CAP_CHOWN"}),
        (Security(add_capabilities=("SYS_ADMIN", "SYS_TIME")), {*CAPABILITIES, "CAP_SYS_ADMIN"}),
        (Security(privileged=True), set(BOUNDING)),
    ],
    ids=["default", "none", "one", "all but one", "what the agent lacks cannot be given", "privileged"],
)
def test_capabilities(security: Security, expected: set[str]) -> None:
    assert set(capability_set(security, BOUNDING)) == expected


def test_users_other_than_root_hold_no_capabilities() -> None:
    found = oci(user=(1000, 1000))["process"]["capabilities"]
    assert found["effective"] == []
    assert found["bounding"]


def test_limits_pinning_and_namespaces() -> None:
    limits = Limits(512, 50_000, 1024, cpus="0-1", memory_nodes="0")
    resources = oci(limits=limits)["linux"]["resources"]
    assert resources["cpu"] == {"shares": 512, "quota": 50_000, "period": 100_000, "cpus": "0-1", "mems": "0"}
    assert resources["memory"] == {"limit": 1024}
    assert resources["devices"] == [{"allow": False, "access": "rwm"}]
    assert [item["type"] for item in oci()["linux"]["namespaces"]] == ["mount", "uts", "ipc", "pid"]


def test_privileged_containers_see_the_system() -> None:
    config = oci(security=Security(privileged=True))
    assert "maskedPaths" not in config["linux"]
    assert config["linux"]["resources"]["devices"] == [{"allow": True, "access": "rwm"}]


def test_cdi_mounts_without_a_type_are_binds() -> None:
    config = default_bind_types({"mounts": [{"destination": "/x", "source": "/h", "options": ["ro"]}]})
    assert config["mounts"] == [{"destination": "/x", "source": "/h", "type": "bind", "options": ["rbind", "ro"]}]


# --- Images. ---


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("busybox", "docker.io/library/busybox:latest"),
        ("busybox:1", "docker.io/library/busybox:1"),
        ("me/app", "docker.io/me/app:latest"),
        ("localhost/app:2", "localhost/app:2"),
        ("registry.example.com:5000/app", "registry.example.com:5000/app:latest"),
        ("app@sha256:abc", "docker.io/library/app@sha256:abc"),
    ],
)
def test_names_of_images(name: str, expected: str) -> None:
    assert full_name(name) == expected


@pytest.mark.parametrize(
    ("command", "args", "expected"),
    [
        ((), (), ("entry", "default")),
        ((), ("x",), ("entry", "x")),
        (("own",), (), ("own",)),
        (("own",), ("x",), ("own", "x")),
    ],
)
def test_what_is_run(command: tuple[str, ...], args: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert ImageConfig(entrypoint=("entry",), command=("default",)).argv(command, args) == expected


@pytest.mark.parametrize(
    ("user", "expected"),
    [("", (0, 0)), ("5", (5, 50)), ("6", (6, 0)), ("web", (5, 50)), ("web:staff", (5, 60)), ("1:2", (1, 2))],
)
def test_users_of_images(user: str, expected: tuple[int, int]) -> None:
    assert parse_user(user, "root:x:0:0::/:\nweb:x:5:50::/:\n", "staff:x:60:\n") == expected


def test_an_unknown_user_is_an_error() -> None:
    with pytest.raises(ImageError, match="no user 'nobody'"):
        parse_user("nobody", "", "")


def layer(**files: bytes | None) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in files.items():
            path = name.replace("__", "/").replace("_wh_", ".wh.")
            info = tarfile.TarInfo(path)
            info.size = len(content or b"")
            archive.addfile(info, io.BytesIO(content or b""))
    return out.getvalue()


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def oci_layout(folder: Path, layers: list[bytes], name: str = "") -> Path:
    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True)
    config = json.dumps({"config": {"Cmd": ["run"], "Env": ["A=1"]}}).encode()
    manifest = json.dumps(
        {"config": {"digest": digest(config)}, "layers": [{"digest": digest(item)} for item in layers]}
    ).encode()
    for content in (config, manifest, *layers):
        (blobs / digest(content)[7:]).write_bytes(content)
    annotations = {"org.opencontainers.image.ref.name": name} if name else {}
    index = {"manifests": [{"digest": digest(manifest), "annotations": annotations}]}
    (folder / "index.json").write_text(json.dumps(index))
    (folder / "oci-layout").write_text("{}")
    return folder


LAYERS = [layer(d__a=b"1", d__b=b"2", gone=b"x"), layer(d___wh_b=None, _wh_gone=None, d__c=b"3")]


def test_layers_are_put_on_each_other_and_whiteouts_remove(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "images")
    image = store.import_path(oci_layout(tmp_path / "layout", LAYERS, "app:1"))
    (root,) = store.folders(image)
    assert sorted(str(path.relative_to(root)) for path in root.rglob("*")) == ["d", "d/a", "d/c"]
    assert image.names == ("docker.io/library/app:1",)
    assert image.config.command == ("run",)


def test_an_archive_of_a_layout_and_a_docker_archive_are_the_same_image(tmp_path: Path) -> None:
    layout = oci_layout(tmp_path / "layout", LAYERS, "app:1")
    with tarfile.open(tmp_path / "oci.tar", "w") as archive:
        archive.add(layout, arcname=".")
    config = json.dumps({"config": {"Cmd": ["run"], "Env": ["A=1"]}}).encode()
    with tarfile.open(tmp_path / "docker.tar", "w") as archive:
        manifest = json.dumps([{"Config": "c.json", "RepoTags": ["app:2"], "Layers": ["0.tar", "1.tar"]}]).encode()
        for name, content in {
            "manifest.json": manifest,
            "c.json": config,
            "0.tar": LAYERS[0],
            "1.tar": LAYERS[1],
        }.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    store = ImageStore(tmp_path / "images")
    first = store.import_path(tmp_path / "oci.tar")
    second = store.import_path(tmp_path / "docker.tar")
    assert first.id == second.id
    assert second.names == ("docker.io/library/app:1", "docker.io/library/app:2")


def test_folders_names_and_removal(tmp_path: Path) -> None:
    (tmp_path / "root/bin").mkdir(parents=True)
    (tmp_path / "root/bin/x").write_text("x")
    store = ImageStore(tmp_path / "images")
    with pytest.raises(ImageError, match="give one"):
        store.import_path(tmp_path / "root")
    image = store.import_path(tmp_path / "root", "app")
    assert store.import_path(tmp_path / "root", "other").id == image.id
    assert store.find("docker.io/library/app:latest") == store.find("other") == store.find(image.id)
    store.remove("app")
    assert store.find("app") is None
    assert store.find("other") is not None
    store.remove("other")
    assert not store.folders(image)[0].exists()
    with pytest.raises(ImageError, match="no image"):
        store.remove("other")


def test_what_is_no_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("no")
    with pytest.raises(ImageError, match="not an image"):
        ImageStore(tmp_path / "images").import_path(tmp_path / "x", "x")
    with pytest.raises(ImageError, match="no such file"):
        ImageStore(tmp_path / "images").import_path(tmp_path / "none", "x")


def test_a_layer_cannot_write_outside(tmp_path: Path) -> None:
    bad = io.BytesIO()
    with tarfile.open(fileobj=bad, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("../../evil"), io.BytesIO())
    with pytest.raises(ImageError, match="outside the destination"):
        ImageStore(tmp_path / "images").import_path(oci_layout(tmp_path / "l", [bad.getvalue()], "x"))
    assert not (tmp_path / "evil").exists()


# --- CRI. ---


def edits(**content: Any) -> ContainerEdits:
    return msgspec.convert(content, ContainerEdits)


def test_cdi_is_translated_for_a_runtime_that_does_not_know_it() -> None:
    content = edits(
        env=["G=1"],
        deviceNodes=[{"path": "/dev/g", "hostPath": "/dev/null", "type": "c", "major": 1, "minor": 3}],
        mounts=[{"hostPath": "/lib", "containerPath": "/lib", "options": ["ro", "bind"]}],
        additionalGids=[44],
    )
    config = container_config(spec(cdi_devices=("v/c=g",), env=[("A", "1")]), "n1", "sha256:x", content)
    assert not config.CDI_devices
    assert {item.key: item.value for item in config.envs} == {"A": "1", "G": "1"}
    device = config.devices[0]
    assert (device.container_path, device.host_path, device.permissions) == ("/dev/g", "/dev/null", "rwm")
    assert config.mounts[0].readonly
    assert list(config.linux.security_context.supplemental_groups) == [44]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"hooks": [{"hookName": "createRuntime", "path": "/h"}]}, "hooks (createRuntime) need it"),
        ({"intelRdt": {"closID": "x"}}, "Intel RDT settings need it"),
        ({"deviceNodes": [{"path": "/p", "type": "p"}]}, "the pipe /p needs it"),
    ],
)
def test_what_cri_has_no_words_for_is_refused(content: dict[str, Any], message: str) -> None:
    with pytest.raises(RuntimeFailure) as caught:
        container_config(spec(cdi_devices=("v/c=g",)), "n1", "x", edits(**content))
    assert message in str(caught.value)


def test_a_runtime_with_cdi_support_gets_device_names() -> None:
    config = container_config(spec(cdi_devices=("v/c=g", "v/c=h")), "n1", "x", None)
    assert [item.name for item in config.CDI_devices] == ["v/c=g", "v/c=h"]


@pytest.mark.parametrize(
    ("name", "info", "expected"),
    [
        ("containerd", {}, False),
        ("containerd", {"config": '{"enableCDI": true}'}, True),
        ("containerd", {"config": '{"enableCDI": false}'}, False),
        ("containerd", {"config": "{"}, False),
        ("cri-o", {}, True),
        ("other", {}, False),
    ],
)
def test_who_knows_cdi(name: str, info: dict[str, str], expected: bool) -> None:
    assert knows_cdi(name, info) is expected


def test_sandboxes_and_records_carry_the_pods_identity() -> None:
    sandbox = sandbox_config(SANDBOX, "n1")
    assert (sandbox.metadata.uid, sandbox.hostname, sandbox.labels["app"]) == ("uid", "p-host", "x")
    assert sandbox.linux.security_context.namespace_options.pid == pb.CONTAINER
    config = container_config(spec(), "n1", "sha256:x", None)
    status = pb.ContainerStatus(
        id="id",
        metadata=config.metadata,
        state=pb.CONTAINER_EXITED,
        started_at=10**9,
        finished_at=2 * 10**9,
        exit_code=137,
        reason="OOMKilled",
        image_ref="sha256:x",
        labels=config.labels,
        annotations=config.annotations,
    )
    record = record_of(status)
    assert (record.pod_uid, record.name, record.attempt, record.image) == ("uid", "a", 2, "busybox")
    assert record.exit is not None
    assert (record.exit.code, record.exit.reason) == (137, "OOMKilled")
    status.state = pb.CONTAINER_RUNNING
    assert record_of(status).exit is None


# --- The process runtime. ---


def test_the_process_runtime_says_what_it_cannot_do() -> None:
    subject = spec(
        mounts=(BindMount("/v/data", "/data", volume="data"), BindMount("/t", "/x", volume="kube-api-access-abc")),
        devices=(HostDevice("/dev/a", "/dev/b"), HostDevice("/dev/null", "/dev/null")),
        limits=Limits(memory_bytes=1),
    )
    content = edits(hooks=[{"hookName": "poststop", "path": "/h"}], mounts=[{"hostPath": "/a", "containerPath": "/b"}])
    found = "\n".join(warnings_for(subject, content))
    for part in ('volume "data"', "device /dev/b is not shown as /dev/a", "hook poststop", "/a of a CDI", "limits"):
        assert part in found
    assert "kube-api-access" not in found
    assert "/dev/null" not in found
    assert warnings_for(spec(), ContainerEdits()) == ()


@pytest.mark.behaviour("N-24")
def test_device_metadata_is_told_from_other_mounts() -> None:
    root = "/var/run/kubernetes.io/dra-device-attributes"
    content = edits(mounts=[{"hostPath": "/a", "containerPath": f"{root}/resourceclaims/c/r/d-metadata.json"}])
    assert str(metadata_path(content.mounts[0])) == "resourceclaims/c/r/d-metadata.json"
    assert warnings_for(spec(), content) == ()
    for path in ("/etc/passwd", f"{root}/../x", f"{root}-other/x"):
        (mount,) = edits(mounts=[{"hostPath": "/a", "containerPath": path}]).mounts
        assert metadata_path(mount) is None


@pytest.mark.behaviour("N-24")
def test_the_process_runtime_copies_device_metadata(tmp_path: Path) -> None:
    host, cdi = tmp_path / "metadata.json", tmp_path / "cdi"
    host.write_text("{}")
    cdi.mkdir()
    target = "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/c/r/d-metadata.json"
    mount = {"hostPath": str(host), "containerPath": target, "options": ["ro", "bind"]}
    device = {"name": "u_r", "containerEdits": {"mounts": [mount]}}
    (cdi / "d.json").write_text(json.dumps({"cdiVersion": "0.5.0", "kind": "d/metadata", "devices": [device]}))
    runtime = ProcessRuntime(tmp_path / "containers", SystemClock(), CdiCache([str(cdi)]))
    job = runtime.job(spec(command=("true",), cdi_devices=("d/metadata=u_r",)), tmp_path / "container-1", "container-1")
    root = Path(dict(job["env"])["DRAY_DEVICE_METADATA"])
    copy = root / "resourceclaims/c/r/d-metadata.json"
    assert (copy.read_text(), copy.stat().st_mode & 0o777) == ("{}", 0o444)
    host.unlink()
    with pytest.raises(RuntimeFailure, match="device metadata"):
        runtime.job(spec(command=("true",), cdi_devices=("d/metadata=u_r",)), tmp_path / "other", "other")
    runtime.remove_files(tmp_path / "container-1")
    assert not root.exists()
    assert "DRAY_DEVICE_METADATA" not in dict(runtime.job(spec(command=("true",)), tmp_path / "plain", "plain")["env"])


def test_volumes_are_named_by_variables() -> None:
    mounts = (BindMount("/v/my-data", "/data", volume="my-data"), BindMount("/v/part", "/p", volume="my-data"))
    assert mount_variables(mounts) == {"DRAY_MOUNT_MY_DATA": "/v/my-data"}
