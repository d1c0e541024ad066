"""Parts of a worker and its process: their messages, tasks in forks, and the errors that MIGraphX prints."""
