"""ClassicResources: negotiates the allocation of cdi.k8s.io claims with drivers, and reserves the claims."""
