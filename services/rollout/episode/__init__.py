"""One episode: the agent loop, its token columns, its transcript."""
