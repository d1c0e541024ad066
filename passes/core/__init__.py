"""What a pass is: the base classes, the driver, edits, scopes, and pipelines."""
