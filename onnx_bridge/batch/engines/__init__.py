"""Where the jobs of a batch run: processes on this machine, or tasks on a Ray cluster."""
