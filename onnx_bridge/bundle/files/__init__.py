"""Bundles as files: archives, packing and verification."""
