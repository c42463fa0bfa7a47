"""PodTopologySpread: spreads Pods that match a selector evenly over topology domains."""
