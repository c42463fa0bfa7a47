"""A Kubernetes client: interface, transports, informers, work queues, events, leader election."""
