"""What every engine is and shares: the contract, its messages, admission, sampling, weights."""
