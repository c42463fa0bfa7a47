"""The Node object, and the lifecycle, status, logs, probes and volumes of the Pods bound to it."""
