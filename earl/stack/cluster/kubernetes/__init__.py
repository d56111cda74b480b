"""Kubernetes as the manager of a run: objects of a run, kubectl, and the Pods' side: docs/adr/0021."""
