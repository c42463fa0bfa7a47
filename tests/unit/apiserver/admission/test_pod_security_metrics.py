from __future__ import annotations

from dray.api.pod_security.policy import LATEST, Level, LevelVersion
from dray.apiserver.admission.plugin import AdmissionAttributes, Operation
from dray.apiserver.admission.pod_security_metrics import PodSecurityMetrics
from dray.apiserver.object_cache import PODS
from dray.apiserver.options import WriteOptions
from dray.apiserver.request import UserInfo
from dray.runtime.metrics import Metrics


def test_evaluations_are_counted_by_version_and_those_of_later_versions_together() -> None:
    metrics = Metrics()
    counts = PodSecurityMetrics(metrics)
    attributes = AdmissionAttributes(
        Operation.CREATE, UserInfo("alice"), "create", PODS, "v1", "", "default", "", {}, None, WriteOptions(), []
    )
    for minor in (LATEST, LATEST, 30, 37, 99, 1 << 40):
        counts.evaluated("enforce", LevelVersion(Level.BASELINE, minor), attributes, allowed=True)
    counts.evaluated("enforce", LevelVersion(Level.BASELINE, LATEST), attributes, allowed=False)
    family = next(each for each in metrics.families() if each.name == "pod_security_evaluations_total")
    found = {(labels["decision"], labels["policy_version"]): value for _, labels, value in family.samples}
    assert found == {("allow", "latest"): 2, ("allow", "v1.30"): 1, ("allow", "future"): 3, ("deny", "latest"): 1}
    assert len(counts._found) == 4
