"""Many models: jobs, the journal, and the engines that run the jobs."""
