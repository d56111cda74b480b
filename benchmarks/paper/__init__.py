"""The figures of the EARL paper (arXiv 2510.05943), made again with this code, next to the paper's own."""
