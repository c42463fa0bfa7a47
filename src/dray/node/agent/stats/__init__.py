"""The CPU and memory use of the node, its Pods and their containers, as kubelet serves it."""
