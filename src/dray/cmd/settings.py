"""The settings of the processes, declared once each."""

from __future__ import annotations

from dataclasses import dataclass

from dray.api.features import FeatureGates
from dray.runtime.settings import (
    BOOLEAN,
    DURATION,
    FEATURE_GATES,
    PORT,
    STRING,
    STRINGS,
    choice,
    decimal,
    number,
    setting,
)

VERBOSITY = number(0, 10)
# Where the CDI specification says that they are.
CDI_SPEC_DIRS = ("/etc/cdi", "/var/run/cdi")


@dataclass(frozen=True, slots=True)
class Common:
    """What every process can be told."""

    config: str = setting(STRING, "", "YAML file with settings; flags and environment win over it")
    feature_gates: FeatureGates = setting(  # noqa: RUF009 - makes a dataclass field
        FEATURE_GATES, FeatureGates(), "features to switch on or off, as in A=true,B=false"
    )
    logging_format: str = setting(choice("text", "json"), "text", "how log lines look")
    verbosity: int = setting(VERBOSITY, 1, "how much to log, 0 to 10", flag="v", environment="DRAY_VERBOSITY")


# Without slots: it is a second base of the settings below, and only one base can have them.
@dataclass(frozen=True)
class NodeControl:
    """How the controllers judge nodes, and what they do about them; Kubernetes' names and defaults."""

    node_monitor_period: float = setting(DURATION, 5.0, "how often the heartbeats of nodes are looked at")
    node_monitor_grace_period: float = setting(
        DURATION, 50.0, "how long a node may be silent before it is said to be unknown"
    )
    node_startup_grace_period: float = setting(DURATION, 60.0, "how long a new node may take to be heard of first")
    node_eviction_rate: float = setting(decimal(0, 1e6), 0.1, "nodes a second whose Pods are evicted")
    secondary_node_eviction_rate: float = setting(
        decimal(0, 1e6), 0.01, "the same in a large zone of which too much is not ready; 0 in a small one"
    )
    unhealthy_zone_threshold: float = setting(
        decimal(0, 1), 0.55, "fraction of a zone's nodes that must be not ready for the secondary rate"
    )
    large_cluster_size_threshold: int = setting(number(0, 1_000_000), 50, "nodes above which a zone is large")
    terminated_pod_gc_threshold: int = setting(
        number(0, 10_000_000), 12_500, "finished Pods that are kept; 0 keeps all of them"
    )
    pod_gc_quarantine: float = setting(DURATION, 40.0, "how long a Node must be gone before its Pods are removed")


@dataclass(frozen=True, slots=True)
class APIServerSettings(Common):
    """`dray apiserver`."""

    data_dir: str = setting(STRING, ".dray", "directory of all state: database, keys, kubeconfig")
    host: str = setting(STRING, "127.0.0.1", "address to listen on", flag="bind-address", key="bindAddress")
    port: int = setting(PORT, 6443, "port to listen on; 0 picks a free one", flag="port")
    store: str = setting(choice("sqlite", "memory", "etcd"), "sqlite", "where objects are kept")
    etcd_servers: tuple[str, ...] = setting(STRINGS, (), "etcd endpoints, as in http://127.0.0.1:2379")
    etcd_prefix: str = setting(STRING, "/dray", "prefix of all keys in etcd")
    etcd_cafile: str = setting(STRING, "", "CA certificate of etcd")
    etcd_certfile: str = setting(STRING, "", "client certificate for etcd")
    etcd_keyfile: str = setting(STRING, "", "key of the client certificate for etcd")
    token_auth_file: str = setting(STRING, "", 'CSV of static tokens: token,user,uid,"group1,group2"')
    tls_names: tuple[str, ...] = setting(
        STRINGS, (), "further names and addresses of the server certificate", flag="tls-san", key="tlsSAN"
    )
    anonymous_auth: bool = setting(
        BOOLEAN,
        True,  # noqa: FBT003 - a default, named by the setting
        "let callers without credentials reach what system:anonymous may (health and version)",
    )
    service_account_issuer: str = setting(STRING, "https://kubernetes.default.svc", "issuer of service account tokens")
    compaction_interval: float = setting(
        DURATION, 300.0, "how long old revisions are kept for watches", flag="etcd-compaction-interval"
    )
    enable_admission_plugins: tuple[str, ...] = setting(
        STRINGS, (), "admission plugins to enable; all of them are unless disabled"
    )
    disable_admission_plugins: tuple[str, ...] = setting(
        STRINGS,
        (),
        "admission plugins to disable: NamespaceLifecycle, ServiceAccount, NodeRestriction, TaintNodesByCondition, "
        "Priority, DefaultTolerationSeconds, ResourceQuota",
    )
    max_requests_inflight: int = setting(number(1, 100_000), 256, "requests worked on at the same time")
    max_watches: int = setting(number(1, 1_000_000), 16384, "watches open at the same time")


@dataclass(frozen=True, slots=True)
class UpSettings(APIServerSettings, NodeControl):
    """`dray up`: everything in one process."""

    scheduler_config: str = setting(STRING, "", "file with a KubeSchedulerConfiguration; empty means the defaults")
    nodes: int = setting(number(0, 100_000), 0, "simulated nodes, whose containers exist in memory alone")
    simulated_start: float = setting(DURATION, 0.0, "how long a container of a simulated node takes to start")
    node: bool = setting(BOOLEAN, False, "run the node agent too, for Pods on this machine")  # noqa: FBT003 - a default
    node_root_dir: str = setting(STRING, "", "directory of the node agent; empty means node in the data directory")
    node_runtime: str = setting(choice("auto", "process", "runc", "cri"), "auto", "what runs containers on this node")
    node_cdi_spec_dirs: tuple[str, ...] = setting(
        STRINGS, CDI_SPEC_DIRS, "directories of CDI specs for the node agent; a later one wins"
    )


@dataclass(frozen=True, slots=True)
class DemoSettings(Common):
    """`dray demo`."""

    data_dir: str = setting(STRING, ".dray/demo", "directory of the demo's state")
    port: int = setting(PORT, 0, "port of the demo's server; 0 picks a free one")
    keep: bool = setting(BOOLEAN, False, "leave everything running")  # noqa: FBT003 - a default
    stop: bool = setting(BOOLEAN, False, "end a demo that was left running")  # noqa: FBT003 - a default


@dataclass(frozen=True, slots=True)
class UISettings(Common):
    """`dray ui`."""

    kubeconfig: str = setting(STRING, "", "kubeconfig of the cluster; empty means kubectl's own")
    context: str = setting(STRING, "", "the kubeconfig's context to use")
    host: str = setting(
        choice("127.0.0.1", "::1"), "127.0.0.1", "loopback address", flag="bind-address", key="bindAddress"
    )
    port: int = setting(PORT, 0, "port of the page; 0 picks a free one")
    open: bool = setting(BOOLEAN, False, "open the page in a browser")  # noqa: FBT003 - a default


@dataclass(frozen=True, slots=True)
class ControllerManagerSettings(Common, NodeControl):
    """`dray controller-manager`."""

    kubeconfig: str = setting(STRING, "", "kubeconfig of the API server; empty means in-cluster")
    leader_elect: bool = setting(BOOLEAN, True, "run only while holding the leader lease")  # noqa: FBT003
    host: str = setting(STRING, "127.0.0.1", "address for health and metrics", flag="bind-address", key="bindAddress")
    port: int = setting(PORT, 10257, "port for health and metrics; 0 picks a free one")


@dataclass(frozen=True, slots=True)
class SchedulerSettings(Common):
    """`dray scheduler`."""

    kubeconfig: str = setting(STRING, "", "kubeconfig of the API server; empty means in-cluster")
    scheduler_config: str = setting(STRING, "", "file with a KubeSchedulerConfiguration; empty means the defaults")
    leader_elect: bool = setting(BOOLEAN, True, "run only while holding the leader lease")  # noqa: FBT003
    host: str = setting(STRING, "127.0.0.1", "address for health and metrics", flag="bind-address", key="bindAddress")
    port: int = setting(PORT, 10259, "port for health and metrics; 0 picks a free one")


@dataclass(frozen=True, slots=True)
class NodeSettings(Common):
    """`dray node`."""

    kubeconfig: str = setting(STRING, "", "kubeconfig of the node; empty takes the cluster of --data-dir")
    data_dir: str = setting(STRING, ".dray", "data directory of a cluster on this machine, for identity and keys")
    node_name: str = setting(
        STRING, "", "name of the Node; empty means the host's", flag="hostname-override", key="hostnameOverride"
    )
    root_dir: str = setting(STRING, "/var/lib/kubelet", "directory of sockets, volumes, logs and containers")
    runtime: str = setting(
        choice("auto", "process", "runc", "cri"), "auto", "what runs containers; auto is runc as root, else process"
    )
    container_runtime_endpoint: str = setting(
        STRING, "unix:///run/containerd/containerd.sock", "CRI socket, for --runtime=cri"
    )
    cdi_spec_dirs: tuple[str, ...] = setting(STRINGS, CDI_SPEC_DIRS, "directories of CDI specs; a later one wins")
    host: str = setting(STRING, "0.0.0.0", "address to serve logs on", flag="address", key="address")  # noqa: S104
    node_ip: str = setting(STRING, "", "address of the node; empty finds it")
    port: int = setting(PORT, 10250, "port to serve logs on; 0 picks a free one")
    node_labels: tuple[str, ...] = setting(STRINGS, (), "labels of the Node, as name=value")
    register_with_taints: tuple[str, ...] = setting(STRINGS, (), "taints of a new Node, as key=value:effect")
    max_pods: int = setting(number(1, 10_000), 110, "how many Pods may run")
    node_lease_duration_seconds: int = setting(
        number(1, 86_400), 40, "how long the node's lease is for; it is renewed four times in that time"
    )
    container_restart_backoff: float = setting(DURATION, 10.0, "first pause before a container is restarted again")
    max_container_restart_period: float = setting(DURATION, 300.0, "longest pause before a container is restarted")
    device_plugin_grace_period: float = setting(
        DURATION, 300.0, "how long a resource outlives its device plugin; 0 drops it at once"
    )
    unhealthy_devices: str = setting(
        choice("fail", "report"), "fail", "what a device that turns unhealthy does to its Pod, besides its status"
    )
    topology_manager_policy: str = setting(
        choice("none", "best-effort", "restricted", "single-numa-node"), "none", "how devices, CPUs and memory align"
    )
    topology_manager_scope: str = setting(choice("container", "pod"), "container", "what is aligned together")
    cpu_manager_policy: str = setting(choice("none", "static"), "none", "whether containers may have CPUs alone")
    reserved_cpus: str = setting(STRING, "", "CPUs that no container gets alone, as in 0,4-5")
    memory_manager_policy: str = setting(choice("None", "Static"), "None", "whether memory is pinned to NUMA nodes")
    reserved_memory: str = setting(STRING, "", "memory the system keeps, as in 0:memory=1Gi;1:memory=512Mi")
    topology_file: str = setting(STRING, "", "YAML description of a machine to use in place of this one")
    client_ca_file: str = setting(STRING, "", "authority of those who may ask for logs; empty means the kubeconfig's")
    tls_cert_file: str = setting(STRING, "", "certificate to serve logs with; empty makes one")
    tls_private_key_file: str = setting(STRING, "", "key of --tls-cert-file")
