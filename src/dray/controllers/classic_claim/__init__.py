"""The claim controller of cdi.k8s.io: makes claims from templates inside Pods, and forgets users that are gone."""
