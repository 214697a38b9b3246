"""The stages a plan is made of: what both runners run, each in a file of its own beside the contract in `stage`."""

from __future__ import annotations
