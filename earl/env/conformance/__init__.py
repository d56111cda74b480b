"""Proves an environment right before compute is spent on it: `earl env test`.

    servicer.py ── the gateway's role, over real gRPC: the host under test dials in from its own process
      host_link.py  one host: streams, pings, requested sessions    rules.py   judges each message
      play.py       episodes and their traces                         policies.py  who acts in them
      checks_*.py   what is checked      examine.py  in which order   card.py      how it is reported

Any host is examined alike, in whatever language: it dials an address. For `module:Class` spawned.py starts
it, and a second one next to it, so that the same seed is played in two processes.
"""
