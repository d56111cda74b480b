"""What a policy would have done on a recorded trace, for operators: `earl replay`."""
