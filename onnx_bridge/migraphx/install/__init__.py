"""Private installations of MIGraphX, from Debian packages, without root."""
