"""Files: locations, digests, atomic writes and the cache of the user."""
