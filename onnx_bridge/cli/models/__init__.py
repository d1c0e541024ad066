"""Models before they are converted."""
