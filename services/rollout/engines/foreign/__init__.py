"""What engines of other projects share: the engine behind the contract, and its loop."""
