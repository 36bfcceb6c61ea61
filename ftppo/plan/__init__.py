"""Decisions as pure functions over frozen values: topology, roster, faults, recovery, retention, chaos."""
