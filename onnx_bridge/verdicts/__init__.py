"""What a MIGraphX runtime really does with nodes: probed, compared with the reference, and cached."""
