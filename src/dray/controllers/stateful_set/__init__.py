"""StatefulSets: Pods with stable names, created and updated in order."""
