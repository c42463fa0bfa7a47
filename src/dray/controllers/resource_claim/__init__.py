"""The claim controller of resource.k8s.io: creates claims from templates and frees claims of finished Pods."""
