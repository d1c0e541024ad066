"""Rules for the operators of com.microsoft."""
