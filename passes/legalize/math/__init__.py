"""Rules for elementwise operators, reductions and linear algebra."""
