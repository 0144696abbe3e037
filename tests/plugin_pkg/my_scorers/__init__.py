"""Scorers that live outside gyre."""
