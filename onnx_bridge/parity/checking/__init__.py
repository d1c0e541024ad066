"""The comparison of bundles with the reference, and its report."""
