"""`earl bench reparallelize`: what a change of parallelism costs, and that nothing is lost by it."""
