"""Lengths of episodes, predicted from those that their tasks had (RhymeRL, arXiv 2508.18588)."""
