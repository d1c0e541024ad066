"""Symptoms that are searched for, and their detection."""
