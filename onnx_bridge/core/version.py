"""The version of the package, as its metadata states it."""

VERSION = "0.1.0"
