"""The page: people see in a browser what runs, and answer. Every fact comes from a verb of `service/`.

`routes.py` lists its addresses, and `static/` is what the browser gets.
"""
