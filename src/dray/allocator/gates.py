"""The feature gates as the allocator uses them: looked up once, not once per device."""

from __future__ import annotations

from dataclasses import dataclass

from dray.api.features import FeatureGates


@dataclass(frozen=True, slots=True)
class Gates:
    """Which parts of the API the allocator acts on."""

    admin_access: bool = True
    prioritized_list: bool = True
    partitionable: bool = True
    taints: bool = True
    taint_rules: bool = True
    consumable_capacity: bool = True
    binding_conditions: bool = True
    list_attributes: bool = False

    @classmethod
    def of(cls, features: FeatureGates) -> Gates:
        """Read the gates; those that need one another are on only together."""
        enabled = features.enabled
        return cls(
            admin_access=enabled("DRAAdminAccess"),
            prioritized_list=enabled("DRAPrioritizedList"),
            partitionable=enabled("DRAPartitionableDevices"),
            taints=enabled("DRADeviceTaints"),
            taint_rules=enabled("DRADeviceTaints") and enabled("DRADeviceTaintRules"),
            consumable_capacity=enabled("DRAConsumableCapacity"),
            # Conditions are reported in the device status, so they cannot be met without it.
            binding_conditions=enabled("DRADeviceBindingConditions") and enabled("DRAResourceClaimDeviceStatus"),
            list_attributes=enabled("DRAListTypeAttributes"),
        )
