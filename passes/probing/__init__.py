"""What the runtime makes of a graph: probes, clusters of nodes, and the partition into device and host."""
