"""The verdicts of a MIGraphX runtime on nodes: probed, compared with the reference, and cached."""
