"""The contract of all engines and their shared code: messages, admission, sampling, weights."""
