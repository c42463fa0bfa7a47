"""The feature gates of the allocator, looked up once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dray.api.features import FeatureGates

# Dray's own: alternatives whose class does not exist are skipped, so that manifests are portable.
SKIP_UNKNOWN_CLASSES: Final = "DRASkipUnknownClasses"


@dataclass(frozen=True, slots=True)
class Gates:
    """The enabled features."""

    admin_access: bool = True
    prioritized_list: bool = True
    partitionable: bool = True
    taints: bool = True
    taint_rules: bool = True
    consumable_capacity: bool = True
    binding_conditions: bool = True
    list_attributes: bool = False
    derived_attributes: bool = False
    compatibility_groups: bool = False
    optional_node_operations: bool = False
    skip_unknown_classes: bool = False

    @classmethod
    def of(cls, features: FeatureGates) -> Gates:
        """Return the gates; a feature that depends on another one is enabled only with it."""
        enabled = features.enabled
        return cls(
            admin_access=enabled("DRAAdminAccess"),
            prioritized_list=enabled("DRAPrioritizedList"),
            partitionable=enabled("DRAPartitionableDevices"),
            taints=enabled("DRADeviceTaints"),
            taint_rules=enabled("DRADeviceTaints") and enabled("DRADeviceTaintRules"),
            consumable_capacity=enabled("DRAConsumableCapacity"),
            # Binding conditions are reported in the device status.
            binding_conditions=enabled("DRADeviceBindingConditions") and enabled("DRAResourceClaimDeviceStatus"),
            list_attributes=enabled("DRAListTypeAttributes"),
            derived_attributes=enabled("DRADerivedAttributes"),
            compatibility_groups=enabled("DRAPartitionableDevices") and enabled("DRADeviceCompatibilityGroups"),
            optional_node_operations=enabled("DRAOptionalNodeOperations"),
            skip_unknown_classes=enabled(SKIP_UNKNOWN_CLASSES),
        )
