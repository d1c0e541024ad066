"""The request of each verb: its options, stated once, in the fields of a frozen dataclass."""
