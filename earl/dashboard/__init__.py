"""The dashboard: one web page that shows a run while it runs, and afterwards.

    run's directory ──► history ──┐
    scheduler, gateway ─► live ───┴─► watch ─► feed ─► server-sent events ─► page/*.js
                                                 ▲
                       a link that works once ─► guard (cookie, Host, Content-Security-Policy)

It only reads: nothing that it serves changes the run.
"""
