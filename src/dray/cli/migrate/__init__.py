"""`dray migrate`: from a device plugin to a driver, node by node, without touching Pods that ask for devices."""
