"""Questions to the runtime about a graph: probes, clusters of nodes, and the partition into device and host."""
