"""ClassicResources: has drivers allocate claims of cdi.k8s.io for nodes that fit the Pod, and reserves them."""
