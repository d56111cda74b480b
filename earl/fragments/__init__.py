"""Fragments of algorithms: small typed functions that a run file names, EARL's own or a user's.

    [scheduler]
    advantage = "opo"                  one of earl.fragments.advantages.ADVANTAGES
    advantage = "my_package:mine"      a function of yours, as described there

A fragment is a pure function of plain values. It is imported by the service that calls it, from any module
that this can import. What it returns is checked before it is used.
"""
