"""The views that people see: terminal, HTML and JUnit."""
