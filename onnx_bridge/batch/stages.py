"""The stages of a job, by the names that people see."""

STAGES = ("load", "clean", "legalize", "parse", "quantize", "compile", "save", "check")
