"""The scheduler: issues tickets, keeps the ledger, plans batches, and ends the run.

servicer ──decode──► Scheduler ──► Ledger + Program (pure: they decide, time is an argument)
                         │                │ changes and facts
                         │                ▼
                         └──────────► Store: one Lua script, one round trip, then the answer
"""
