"""What each verb is asked to do: its options, stated once, in the fields of a frozen dataclass."""
