"""The stages of a job, by the names that people see."""

STAGES = ("load", "clean", "legalize", "parse", "compile", "save", "check")
