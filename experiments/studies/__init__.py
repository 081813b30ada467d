"""Measurements behind defaults and claims."""
