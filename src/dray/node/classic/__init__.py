"""Claims of cdi.k8s.io on the node: prepared by their drivers' plugins before Pods start, and given back after them."""
