"""Hosts on one machine, joined by links of a limited rate: network namespaces, veth pairs, a bridge, tc."""
