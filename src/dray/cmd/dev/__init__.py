"""`dray dev`: a cluster, a node and a driver that is started again whenever its file is saved."""
