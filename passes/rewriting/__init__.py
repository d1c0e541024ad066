"""What a pass and a rule are: their base classes, the driver, edits, pipelines and specifications."""
