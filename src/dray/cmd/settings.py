"""The settings of the processes, declared once each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dray.api.features import FeatureGates
from dray.api.gate_table import CURRENT, Release
from dray.apiserver.admission.order import PLUGIN_ORDER
from dray.runtime.settings import (
    BOOLEAN,
    DURATION,
    EMULATED_VERSION,
    FEATURE_GATES,
    NETWORK,
    NETWORKS,
    PORT,
    STRING,
    STRINGS,
    choice,
    decimal,
    number,
    setting,
)

VERBOSITY = number(0, 10)
# The default directories of the CDI specification.
CDI_SPEC_DIRS = ("/etc/cdi", "/var/run/cdi")
# The endpoints of the two common CRI runtimes.
CONTAINERD = "unix:///run/containerd/containerd.sock"
CRI_O = "unix:///run/crio/crio.sock"
# Where both read their CNI configuration.
CNI_CONF_DIR = "/etc/cni/net.d"


@dataclass(frozen=True, slots=True)
class Common:
    """Settings of every process."""

    config: str = setting(STRING, "", "YAML file with settings; flags and environment variables take precedence")
    feature_gates: FeatureGates = setting(  # noqa: RUF009 - makes a dataclass field
        FEATURE_GATES, FeatureGates(), "features to enable or disable, as in A=true,B=false"
    )
    # What follows from it is in `feature_gates.release`.
    emulated_version: Release = setting(  # noqa: RUF009 - makes a dataclass field
        EMULATED_VERSION,
        CURRENT,
        "release of Kubernetes, 1.33 to 1.37, whose feature gates, fields and API versions to have, as in 1.35",
    )
    logging_format: str = setting(choice("text", "json"), "text", "format of log lines")
    verbosity: int = setting(VERBOSITY, 1, "log verbosity, 0 to 10", flag="v", environment="DRAY_VERBOSITY")


# Without slots, as the next one: a second base of the settings below, of which only one can have them.
@dataclass(frozen=True)
class FallbackServers:
    """Settings of the processes that are clients of an API server."""

    api_servers: tuple[str, ...] = setting(
        STRINGS, (), "URLs of further API servers of the cluster, used in turn when the kubeconfig's cannot be reached"
    )


@dataclass(frozen=True)
class NodeControl:
    """Settings of the controllers of nodes; Kubernetes' names and defaults, if it has them."""

    node_monitor_period: float = setting(DURATION, 5.0, "period between checks of the heartbeats of nodes")
    node_monitor_grace_period: float = setting(
        DURATION, 50.0, "time without heartbeats after which a running node is marked as unhealthy"
    )
    node_startup_grace_period: float = setting(
        DURATION, 60.0, "time without heartbeats after which a starting node is marked as unhealthy"
    )
    node_eviction_rate: float = setting(
        decimal(0, 1e6), 0.1, "nodes per second whose Pods are evicted in a healthy zone"
    )
    secondary_node_eviction_rate: float = setting(
        decimal(0, 1e6), 0.01, "nodes per second whose Pods are evicted in an unhealthy zone; 0 if the zone is small"
    )
    unhealthy_zone_threshold: float = setting(
        decimal(0, 1), 0.55, "fraction of not ready nodes that makes a zone unhealthy"
    )
    large_cluster_size_threshold: int = setting(
        number(0, 1_000_000), 50, "nodes above which a zone is large, for --secondary-node-eviction-rate"
    )
    terminated_pod_gc_threshold: int = setting(
        number(0, 10_000_000), 12_500, "terminated Pods that are kept; 0 keeps all of them"
    )
    pod_gc_quarantine: float = setting(DURATION, 40.0, "time after the deletion of a Node before its Pods are removed")
    allocate_node_cidrs: bool = setting(
        BOOLEAN, default=False, text="whether Nodes get ranges of addresses for their Pods"
    )
    cluster_cidr: str = setting(NETWORK, "10.244.0.0/16", "range of the addresses of Pods")
    node_cidr_mask_size: int = setting(number(8, 30), 24, "prefix length of a Node's part of --cluster-cidr")
    kubelet_serving_networks: tuple[str, ...] = setting(
        NETWORKS,
        (),
        "ranges of addresses that a node may have in its serving certificate besides the one that it connects from",
    )


@dataclass(frozen=True, slots=True)
class APIServerSettings(Common):
    """`dray apiserver`."""

    FREQUENT: ClassVar[tuple[str, ...]] = (
        "data_dir",
        "port",
        "host",
        "store",
        "etcd_servers",
        "token_auth_file",
        "feature_gates",
        "config",
        "verbosity",
    )

    data_dir: str = setting(STRING, ".dray", "directory of all state: database, keys, kubeconfig")
    host: str = setting(STRING, "127.0.0.1", "address to listen on", flag="bind-address", key="bindAddress")
    port: int = setting(PORT, 6443, "port to listen on; 0 picks a free one", flag="port")
    store: str = setting(choice("sqlite", "memory", "etcd"), "sqlite", "storage backend")
    etcd_servers: tuple[str, ...] = setting(STRINGS, (), "etcd endpoints, as in http://127.0.0.1:2379")
    etcd_prefix: str = setting(STRING, "/dray", "prefix of all keys in etcd")
    etcd_cafile: str = setting(STRING, "", "CA certificate of etcd")
    etcd_certfile: str = setting(STRING, "", "client certificate for etcd")
    etcd_keyfile: str = setting(STRING, "", "key of the client certificate for etcd")
    etcd_insecure: bool = setting(
        BOOLEAN,
        default=False,
        text="reach etcd on other machines without TLS: the network can read and change all objects, Secrets included",
    )
    etcd_healthcheck_timeout: float = setting(
        DURATION, 2.0, "time in which any store must answer for /livez", flag="etcd-healthcheck-timeout"
    )
    etcd_readycheck_timeout: float = setting(
        DURATION, 2.0, "time in which any store must answer for /readyz", flag="etcd-readycheck-timeout"
    )
    shutdown_delay_duration: float = setting(
        DURATION, 0.0, "time to serve on after a signal to stop, while /readyz fails and /livez does not"
    )
    token_auth_file: str = setting(STRING, "", 'CSV of static tokens: token,user,uid,"group1,group2"')
    tls_names: tuple[str, ...] = setting(
        STRINGS, (), "additional names and addresses in the server certificate", flag="tls-san", key="tlsSAN"
    )
    anonymous_auth: bool = setting(
        BOOLEAN,
        default=True,
        text="serve requests without credentials as system:anonymous (health, version, and what machines need to join)",
    )
    advertise_address: str = setting(
        STRING, "", "address by which Pods reach the server; empty means the one it listens on, unless that is loopback"
    )
    service_cluster_ip_range: str = setting(NETWORK, "10.96.0.0/16", "range of the cluster IPs of Services")
    service_account_issuer: str = setting(STRING, "https://kubernetes.default.svc", "issuer of service account tokens")
    compaction_interval: float = setting(
        DURATION, 300.0, "time that old revisions are kept for watches", flag="etcd-compaction-interval"
    )
    event_ttl: float = setting(DURATION, 3600.0, "time that Events are kept after their last write; 0 means for ever")
    enable_admission_plugins: tuple[str, ...] = setting(
        STRINGS, (), "admission plugins to enable; by default all are enabled"
    )
    disable_admission_plugins: tuple[str, ...] = setting(
        STRINGS,
        (),
        f"admission plugins to disable: {', '.join(PLUGIN_ORDER)}",
    )
    runtime_config: tuple[str, ...] = setting(
        STRINGS,
        (),
        "API versions to switch on or off, as in resource.k8s.io/v1beta1=false; also GROUP/VERSION/RESOURCE, and "
        "api/all, api/ga, api/beta and api/alpha",
    )
    admission_control_config_file: str = setting(
        STRING, "", "file with an AdmissionConfiguration: the defaults and exemptions of PodSecurity"
    )
    audit_policy_file: str = setting(STRING, "", "file with an audit.k8s.io/v1 Policy: which requests are recorded")
    audit_log_path: str = setting(STRING, "", "file of audit events, one JSON object a line; - is standard output")
    audit_log_maxage: int = setting(
        number(0, 36_500), 0, "days that rotated audit logs are kept; 0 means for ever", flag="audit-log-maxage"
    )
    audit_log_maxbackup: int = setting(
        number(0, 100_000), 0, "number of rotated audit logs that are kept; 0 means all", flag="audit-log-maxbackup"
    )
    audit_log_maxsize: int = setting(
        number(0, 1_000_000),
        0,
        "megabytes at which an audit log is rotated; 0 means never",
        flag="audit-log-maxsize",
    )
    audit_log_mode: str = setting(
        choice("blocking", "batch"), "blocking", "whether requests wait for a slow disk, or their events are dropped"
    )
    max_requests_inflight: int = setting(
        number(1, 100_000), 256, "maximum number of requests in flight, watches excluded"
    )
    max_watches: int = setting(number(1, 1_000_000), 16384, "maximum number of open watches")
    max_connections: int = setting(
        number(1, 1_000_000), 20_000, "maximum number of open connections; those beyond it are answered with 503"
    )


@dataclass(frozen=True, slots=True)
class UpSettings(APIServerSettings, NodeControl):
    """`dray up`: everything in one process."""

    FREQUENT: ClassVar[tuple[str, ...]] = (
        "data_dir",
        "port",
        "name",
        "detach",
        "nodes",
        "devices",
        "node",
        "snapshot",
        "store",
        "scheduler_profile",
        "scheduler_config",
        "feature_gates",
        "config",
        "verbosity",
    )

    scheduler_config: str = setting(STRING, "", "file with a KubeSchedulerConfiguration; empty means the defaults")
    scheduler_profile: str = setting(
        choice("spread", "pack", "best-fit", "fragmentation"),
        "spread",
        "without a file: whether the scheduler spreads Pods over nodes or packs them",
    )
    cluster_signing_duration: float = setting(DURATION, 31_536_000.0, "longest lifetime of signed certificates")
    usage_interval: float = setting(
        DURATION, 60.0, "how often the usage of devices is recorded, for `dray usage`; 0 means never"
    )
    name: str = setting(
        STRING,
        "",
        "name of the cluster: its data is in ~/.local/state/dray/clusters, it listens on a free port, and your "
        "kubeconfig gets the context dray-NAME",
    )
    kubeconfig: str = setting(
        STRING, "", "kubeconfig that gets a context for the cluster; with --name: $KUBECONFIG, or ~/.kube/config"
    )
    detach: bool = setting(BOOLEAN, default=False, text="run in the background; return when the cluster serves")
    nodes: int = setting(number(0, 100_000), 0, "number of simulated nodes, which run no real containers")
    devices: tuple[str, ...] = setting(
        STRINGS,
        (),
        "devices of each simulated node, as in gpu:8xH100,mig: a class, a number, a shape (H100, A100, L4, MI300, TPU, "
        "cx7, FPGA, or a YAML file) and options (mig, cpx, vf, region); can be repeated",
    )
    snapshot: str = setting(
        STRING, "", "start with the objects of a file of `dray snapshot`, on simulated nodes", flag="from", key="from"
    )
    simulated_start: float = setting(DURATION, 0.0, "startup time of containers on simulated nodes")
    node: bool = setting(BOOLEAN, default=False, text="also run the node agent, for Pods on this machine")
    keep_containers: bool = setting(
        BOOLEAN, default=False, text="let the containers of this node go on when dray up is stopped"
    )
    node_root_dir: str = setting(
        STRING,
        "",
        "directory of the node agent; empty means /var/lib/kubelet for root, if it is empty, else node in the data "
        "directory",
    )
    node_runtime: str = setting(choice("auto", "process", "cri"), "process", "container runtime of this node")
    node_pod_network: str = setting(choice("auto", "host", "routed"), "auto", "network of Pods on this node")
    node_cni_conf_dir: str = setting(STRING, CNI_CONF_DIR, "CNI directory of this node's CRI runtime")
    node_container_runtime_endpoint: str = setting(STRING, CONTAINERD, "endpoint of the CRI runtime of this node")
    node_registry_config: str = setting(STRING, "", "Docker configuration file with this node's credentials")
    node_cdi_spec_dirs: tuple[str, ...] = setting(
        STRINGS, CDI_SPEC_DIRS, "CDI spec directories of the node agent; later ones take precedence"
    )


@dataclass(frozen=True, slots=True)
class DemoSettings(Common):
    """`dray demo`."""

    data_dir: str = setting(STRING, ".dray/demo", "directory of the demo's state")
    port: int = setting(PORT, 0, "port of the demo's server; 0 picks a free one")
    keep: bool = setting(BOOLEAN, default=False, text="leave everything running")
    stop: bool = setting(BOOLEAN, default=False, text="stop a demo that was left running")


@dataclass(frozen=True, slots=True)
class UISettings(Common):
    """`dray ui`."""

    kubeconfig: str = setting(STRING, "", "kubeconfig of the cluster; empty means kubectl's default")
    context: str = setting(STRING, "", "kubeconfig context to use")
    host: str = setting(
        choice("127.0.0.1", "::1"), "127.0.0.1", "loopback address", flag="bind-address", key="bindAddress"
    )
    port: int = setting(PORT, 0, "port of the dashboard; 0 picks a free one")
    open: bool = setting(BOOLEAN, default=False, text="open the dashboard in a browser")


@dataclass(frozen=True, slots=True)
class ControllerManagerSettings(Common, FallbackServers, NodeControl):
    """`dray controller-manager`."""

    FREQUENT: ClassVar[tuple[str, ...]] = (
        "kubeconfig",
        "leader_elect",
        "port",
        "feature_gates",
        "config",
        "verbosity",
    )

    kubeconfig: str = setting(STRING, "", "kubeconfig of the API server; empty means in-cluster")
    leader_elect: bool = setting(BOOLEAN, default=True, text="run only while holding the leader lease")
    controllers: tuple[str, ...] = setting(
        STRINGS, ("*",), "controllers to run: * for all, NAME to enable one, -NAME to disable one"
    )
    cluster_signing_cert_file: str = setting(
        STRING, "", "certificate of the cluster's authority; without it nobody signs requests for client certificates"
    )
    cluster_signing_key_file: str = setting(STRING, "", "key of the cluster's authority")
    cluster_signing_kubelet_serving_cert_file: str = setting(
        STRING,
        "",
        "certificate of the authority for serving certificates of nodes; without it nobody signs requests for these",
    )
    cluster_signing_kubelet_serving_key_file: str = setting(
        STRING, "", "key of the authority for serving certificates of nodes"
    )
    cluster_signing_duration: float = setting(DURATION, 31_536_000.0, "longest lifetime of signed certificates")
    host: str = setting(STRING, "127.0.0.1", "address for health and metrics", flag="bind-address", key="bindAddress")
    port: int = setting(PORT, 10257, "port for health and metrics; 0 picks a free one")


@dataclass(frozen=True, slots=True)
class SchedulerSettings(Common, FallbackServers):
    """`dray scheduler`."""

    FREQUENT: ClassVar[tuple[str, ...]] = (
        "kubeconfig",
        "scheduler_config",
        "scheduler_profile",
        "leader_elect",
        "port",
        "feature_gates",
        "config",
        "verbosity",
    )

    kubeconfig: str = setting(STRING, "", "kubeconfig of the API server; empty means in-cluster")
    scheduler_config: str = setting(STRING, "", "file with a KubeSchedulerConfiguration; empty means the defaults")
    scheduler_profile: str = setting(
        choice("spread", "pack", "best-fit", "fragmentation"),
        "spread",
        "without a file: whether the scheduler spreads Pods over nodes or packs them",
    )
    leader_elect: bool | None = setting(
        BOOLEAN,
        default=None,
        text="run only while holding the leader lease; not given means the configuration's, or true",
    )
    leader_elect_resource_name: str = setting(
        STRING, "", "name of the Lease; empty means that of the configuration, or kube-scheduler"
    )
    leader_elect_resource_namespace: str = setting(
        STRING, "", "namespace of the Lease; empty means that of the configuration, or kube-system"
    )
    leader_elect_resource_lock: str = setting(choice("leases"), "leases", "kind of the object that is locked")
    leader_elect_lease_duration: float = setting(
        DURATION, 0.0, "time that other candidates wait for a silent leader; 0 means the configuration's, or 15s"
    )
    leader_elect_renew_deadline: float = setting(
        DURATION, 0.0, "time after which a leader that cannot renew stops; 0 means the configuration's, or 10s"
    )
    leader_elect_retry_period: float = setting(
        DURATION, 0.0, "time between attempts to acquire or renew; 0 means the configuration's, or 2s"
    )
    host: str = setting(STRING, "127.0.0.1", "address for health and metrics", flag="bind-address", key="bindAddress")
    port: int = setting(PORT, 10259, "port for health and metrics; 0 picks a free one")


@dataclass(frozen=True, slots=True)
class NodeSettings(Common, FallbackServers):
    """`dray node`."""

    FREQUENT: ClassVar[tuple[str, ...]] = (
        "kubeconfig",
        "data_dir",
        "node_name",
        "root_dir",
        "runtime",
        "container_runtime_endpoint",
        "node_labels",
        "register_with_taints",
        "feature_gates",
        "config",
        "verbosity",
    )

    kubeconfig: str = setting(STRING, "", "kubeconfig of the node; empty means the cluster in --data-dir")
    data_dir: str = setting(STRING, ".dray", "data directory of a cluster on this machine, for the node's credentials")
    node_name: str = setting(
        STRING, "", "name of the Node; empty means the hostname", flag="hostname-override", key="hostnameOverride"
    )
    root_dir: str = setting(STRING, "/var/lib/kubelet", "directory of sockets, volumes, logs and containers")
    runtime: str = setting(
        choice("auto", "process", "cri"),
        "auto",
        "container runtime; auto means cri if one answers, else process",
    )
    container_runtime_endpoint: str = setting(STRING, CONTAINERD, "endpoint of the CRI runtime, for --runtime=cri")
    registry_config: str = setting(STRING, "", "Docker configuration file with the node's credentials for registries")
    max_parallel_image_pulls: int = setting(number(1, 100), 1, "how many images are pulled at the same time")
    cdi_spec_dirs: tuple[str, ...] = setting(STRINGS, CDI_SPEC_DIRS, "CDI spec directories; later ones take precedence")
    pod_network: str = setting(
        choice("auto", "host", "routed"),
        "auto",
        "network of Pods: what the CRI runtime is configured for, the node's own, or one that the agent configures, "
        "with addresses of the podCIDR; processes always use the node's",
    )
    cni_conf_dir: str = setting(
        STRING, CNI_CONF_DIR, "CNI directory of the CRI runtime, to which --pod-network=routed writes"
    )
    cleanup: bool = setting(
        BOOLEAN, default=False, text="remove rules, links and configuration of the Pod network of --root-dir, and exit"
    )
    cluster_dns: tuple[str, ...] = setting(STRINGS, (), "addresses of the cluster's DNS servers")
    host: str = setting(STRING, "0.0.0.0", "address to serve logs on", flag="address", key="address")  # noqa: S104
    node_ip: str = setting(STRING, "", "IP address of the node; empty means to detect it")
    port: int = setting(PORT, 10250, "port to serve logs on; 0 picks a free one")
    healthz_bind_address: str = setting(STRING, "127.0.0.1", "address for health checks over plain HTTP")
    healthz_port: int = setting(PORT, 10248, "port for health checks over plain HTTP; 0 disables them")
    node_labels: tuple[str, ...] = setting(STRINGS, (), "labels to register the Node with, key=value")
    register_with_taints: tuple[str, ...] = setting(STRINGS, (), "taints to register the Node with, key=value:effect")
    rotate_certificates: bool = setting(BOOLEAN, default=True, text="renew the client certificate before it expires")
    rotate_server_certificates: bool = setting(
        BOOLEAN,
        default=True,
        text="request the serving certificate from the cluster, and renew it; not with --tls-cert-file",
    )
    max_pods: int = setting(number(1, 10_000), 110, "maximum number of Pods on this node")
    node_lease_duration_seconds: int = setting(
        number(1, 86_400), 40, "duration of the node's Lease, which is renewed four times in that time"
    )
    node_status_report_frequency: float = setting(
        DURATION,
        300.0,
        "time after which the Node's status is written although it has not changed",
    )
    housekeeping_interval: float = setting(
        DURATION, 15.0, "period of samples of CPU and memory, which rates are computed over"
    )
    container_restart_backoff: float = setting(DURATION, 10.0, "initial backoff before a container is restarted")
    max_container_restart_period: float = setting(DURATION, 300.0, "maximum backoff before a container is restarted")
    device_plugin_grace_period: float = setting(
        DURATION, 300.0, "time that a resource stays in the capacity after its device plugin has stopped"
    )
    unhealthy_devices: str = setting(
        choice("fail", "report"), "fail", "whether a Pod with an unhealthy device fails, or reports it in its status"
    )
    topology_manager_policy: str = setting(
        choice("none", "best-effort", "restricted", "single-numa-node"),
        "none",
        "NUMA alignment of devices, CPUs, memory",
    )
    topology_manager_scope: str = setting(choice("container", "pod"), "container", "scope of the alignment")
    cpu_manager_policy: str = setting(choice("none", "static"), "none", "whether containers may have exclusive CPUs")
    reserved_cpus: str = setting(STRING, "", "CPUs that are never assigned exclusively, as in 0,4-5")
    memory_manager_policy: str = setting(choice("None", "Static"), "None", "whether memory is pinned to NUMA nodes")
    reserved_memory: str = setting(STRING, "", "memory reserved per NUMA node, as in 0:memory=1Gi;1:memory=512Mi")
    topology_file: str = setting(STRING, "", "YAML file with a NUMA topology to use instead of this machine's")
    client_ca_file: str = setting(STRING, "", "CA of clients that may read logs; empty means the kubeconfig's")
    tls_cert_file: str = setting(STRING, "", "serving certificate; empty means to create one")
    tls_private_key_file: str = setting(STRING, "", "private key of --tls-cert-file")
