"""What was found, as files: a page for people (`report`), and JUnit's XML for machines (`junit`)."""
