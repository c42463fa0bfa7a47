"""What runtimes receive: CRI requests, names of images, and what the process runtime cannot do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dray.api.cdi import ContainerEdits
from dray.node.cdi.cache import CdiCache
from dray.node.resource_manager import HostDevice
from dray.node.runtimes.cri.runtime import CriRuntime, CriSettings
from dray.node.runtimes.cri.translate import (
    container_config,
    knows_cdi,
    record_of,
    sandbox_config,
    with_configuration,
)
from dray.node.runtimes.image_references import full_name
from dray.node.runtimes.process.jobs import Jobs
from dray.node.runtimes.process.limitations import metadata_path, mount_variables, warnings_for
from dray.node.runtimes.process.runtime import ProcessRuntime
from dray.node.runtimes.runtime import (
    BindMount,
    ContainerSpec,
    ImageRequest,
    Limits,
    RuntimeFailure,
    Sandbox,
)
from dray.rpc.pb.cri.v1 import api_pb2 as pb
from dray.runtime.system import SystemClock
from dray.runtime.tasks import ChildTasks

SANDBOX = Sandbox("uid", "ns", "p", "p-host", "/logs/ns_p_uid", labels={"app": "x"})


def spec(**fields: Any) -> ContainerSpec:
    return ContainerSpec(SANDBOX, "a", 2, "busybox", **fields)


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
    jobs = Jobs(tmp_path / "containers", CdiCache([str(cdi)]))
    job = jobs.job(spec(command=("true",), cdi_devices=("d/metadata=u_r",)), "container-1")
    root = Path(dict(job["env"])["DRAY_DEVICE_METADATA"])
    copy = root / "resourceclaims/c/r/d-metadata.json"
    assert (copy.read_text(), copy.stat().st_mode & 0o777) == ("{}", 0o444)
    host.unlink()
    with pytest.raises(RuntimeFailure, match="device metadata"):
        jobs.job(spec(command=("true",), cdi_devices=("d/metadata=u_r",)), "other")
    jobs.remove("container-1")
    assert not root.exists()
    assert "DRAY_DEVICE_METADATA" not in dict(jobs.job(spec(command=("true",)), "plain")["env"])


def test_volumes_are_named_by_variables() -> None:
    mounts = (BindMount("/v/my-data", "/data", volume="my-data"), BindMount("/v/part", "/p", volume="my-data"))
    assert mount_variables(mounts) == {"DRAY_MOUNT_MY_DATA": "/v/my-data"}


@pytest.mark.behaviour("IM-19")
@pytest.mark.parametrize("policy", ["Always", "IfNotPresent", "Never"])
async def test_the_process_runtime_ignores_images(tmp_path: Path, policy: str) -> None:
    runtime = ProcessRuntime(tmp_path, SystemClock(), CdiCache([]))
    found = await runtime.ensure_image(ImageRequest("registry.invalid/none:1", policy, SANDBOX))
    assert (found.reference, found.id) == ("registry.invalid/none:1", "")
    assert await runtime.images() == ()


@pytest.mark.parametrize(
    ("info", "environment", "names"),
    [
        (
            {"config": {"envs": [{"key": "A", "value": "b"}, {"key": "C"}], "CDI_devices": [{"name": "x.com/y=z"}]}},
            {"A": "b", "C": ""},
            ("x.com/y=z",),
        ),
        ({"runtimeSpec": {"process": {"env": ["A=b=c", "D"]}}}, {"A": "b=c", "D": ""}, ()),
        ({"config": {"devices": [{"host_path": "/dev/x"}], "envs": None}}, {}, ("/dev/x",)),
        ({}, {}, ()),
        ([], {}, ()),
        ({"config": {"envs": ["A=b"]}}, {}, ()),
        ({"config": []}, {}, ()),
    ],
)
def test_what_a_runtime_tells_about_a_containers_configuration(
    info: Any, environment: dict[str, str], names: tuple[str, ...]
) -> None:
    record = record_of(pb.ContainerStatus(id="c", state=pb.CONTAINER_RUNNING))
    found = with_configuration(record, {"info": json.dumps(info)})
    assert (dict(found.environment), found.device_names) == (environment, names)
    assert with_configuration(record, {"info": "{"}) == record


async def test_a_process_is_found_with_its_environment(tmp_path: Path) -> None:
    tasks = ChildTasks("test")
    first, second = (ProcessRuntime(tmp_path, SystemClock(), CdiCache([])) for _ in range(2))
    await first.start(lambda _record: None, tasks)
    sandbox = Sandbox("u", "ns", "p", "p", str(tmp_path / "logs"))
    made = await first.run(ContainerSpec(sandbox, "a", 0, "", command=("sleep", "60"), env=(("FOO", "d0"),)))
    await first.stop()
    (found,) = await second.start(lambda _record: None, tasks)
    assert (found.id, found.environment["FOO"]) == (made.record.id, "d0")
    assert "FOO" not in repr(found), "variables may be secrets, and records are logged"
    await second.stop_container(found.id, 0)
    await second.stop()
    await tasks.aclose()


@pytest.mark.parametrize("becomes", [pb.CONTAINER_RUNNING, None])
async def test_a_container_that_is_being_started_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, becomes: pb.ContainerState | None
) -> None:
    """By a call of an agent that was killed: it can be removed when that has failed, and runs when it has not."""
    runtime = CriRuntime(CriSettings("unix:///none", "n", tmp_path), SystemClock(), CdiCache([]))
    states, asked = [pb.CONTAINER_CREATED, pb.CONTAINER_CREATED, becomes], list[str]()

    async def call(_method: Any, request: Any, _timeout_seconds: float = 0) -> Any:
        asked.append(type(request).__name__)
        if isinstance(request, pb.ContainerStatusRequest):
            state = states.pop(0) if len(states) > 1 else becomes
            return pb.ContainerStatusResponse(status=pb.ContainerStatus(id="c", state=state or pb.CONTAINER_CREATED))
        if becomes is None and len(asked) > 4:
            return pb.RemoveContainerResponse()
        raise RuntimeFailure("container is in starting state, can't be removed")

    monkeypatch.setattr(runtime, "_call", call)
    monkeypatch.setattr("dray.node.runtimes.cri.runtime.START_POLL_SECONDS", 0.0)
    found = await runtime._adopt(pb.Container(id="c", state=pb.CONTAINER_CREATED))
    assert (found is not None and found.id == "c") is (becomes is not None)
    assert asked[:3] == ["RemoveContainerRequest", "ContainerStatusRequest", "RemoveContainerRequest"]
