"""InterPodAffinity: places Pods near or away from other Pods, by topology domain."""
