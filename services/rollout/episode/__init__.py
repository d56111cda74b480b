"""The results of an episode: its token columns, its transcript, its spans of time, its tokenizer. Pure."""
