"""The page: people see in a browser what runs, and answer. `routes.py` lists its addresses, `static/` is what the
browser gets. Every fact comes from a verb of `service/`.
"""
