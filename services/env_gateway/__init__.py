"""The environment gateway: env hosts dial in, clients play sessions, the two never meet."""
