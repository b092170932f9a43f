"""One module per family of requests; handlers never import one another."""
