"""What an episode leaves: its token columns, its transcript, its spans of time, its tokenizer. Pure."""
