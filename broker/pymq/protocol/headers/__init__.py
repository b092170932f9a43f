"""Typed request and response headers, one module per family of codes."""
