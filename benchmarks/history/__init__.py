"""`earl bench history`: drafts from what was written before, beside the same engine without them."""
