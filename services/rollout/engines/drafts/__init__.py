"""Drafts: tokens that a sequence probably samples next, computed in one step with its last one."""
