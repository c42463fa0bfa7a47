"""The claim that holds a Pod's extended resources: made, named in the Pod's status, and taken away."""
