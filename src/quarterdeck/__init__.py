"""Quarterdeck: the coordination plane for fleets of AI agents.

This module stays empty but for the version, because every `qd` command imports it.
"""

__version__ = "0.1.0"
