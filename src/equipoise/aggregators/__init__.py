"""Robust server rules and filters, one file each."""
