"""Several programs of one model in one bundle."""
