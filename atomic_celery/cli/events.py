"""``atomic events``: what happened to the fleet."""

from __future__ import annotations
