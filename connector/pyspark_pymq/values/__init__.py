"""What the bodies of messages mean: formats of values, which source and sink share."""
