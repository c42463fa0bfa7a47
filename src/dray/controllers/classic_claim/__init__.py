"""The claim controller of cdi.k8s.io: creates claims from templates in Pods and removes finished consumers."""
