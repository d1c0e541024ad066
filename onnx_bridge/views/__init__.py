"""What people see: HTML and JUnit."""
