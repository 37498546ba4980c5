"""Equipoise on Flower's deployment engine: `pip install equipoise[flower]`. Nothing else imports this package."""
