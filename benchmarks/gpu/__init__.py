"""The checks of `earl bench gpu`: what EARL does on CUDA cards, each check in a process of its own."""
