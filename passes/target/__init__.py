"""What the runtime makes of a graph: probes, suspects, and the partition into device and host."""
