"""Results as files: HTML pages for people, and JUnit XML for CI systems."""
