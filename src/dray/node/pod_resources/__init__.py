"""The PodResources API: devices, CPUs, memory and claims of Pods, for monitoring and network agents."""
