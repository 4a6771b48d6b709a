"""The page, without a browser."""
