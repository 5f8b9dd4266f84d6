"""Hydra finds launcher plugins only in this namespace package."""
