"""PodResources: tells monitoring and network agents which devices, CPUs, memory and claims Pods have."""
