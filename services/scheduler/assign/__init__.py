"""HistoPipe (RhymeRL, arXiv 2508.18588): lengths predicted from history, and sequences assigned by them."""
