"""The Pods API of kubelet: the Pods of the node for local agents, without the API server; beta in Kubernetes 1.37."""
