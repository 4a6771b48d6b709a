"""The page in the browser: it shows runs, and people answer questions on it.

Every fact on it comes from a verb of `service/`. `routes.py` lists its addresses, and `static/` has the files
that the browser loads.
"""
