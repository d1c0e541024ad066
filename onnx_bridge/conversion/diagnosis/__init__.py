"""Diagnosis of a model by the runtime's verdicts, without compiling it."""
