"""Load the Hypothesis profile before any law is collected."""

from __future__ import annotations

from property_tests.profiles import load_profile

load_profile()
