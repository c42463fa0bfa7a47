"""The Pod Security Standards: which policy a namespace has, and whether a Pod meets it. Texts are Kubernetes' own.

`policy.py` reads the policy from labels and configuration, `controls.py` has the controls, and `evaluation.py` applies
those of a level and version.
"""
