"""The conformance suite of the protocol: its fixtures behind the HTTP assembly of the product."""
