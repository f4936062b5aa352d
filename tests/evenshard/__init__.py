"""Tests of what a trainer imports."""
