"""The networks of Pods, and the way to Services: plans are pure, `commands` runs `ip` and `iptables-restore`."""
