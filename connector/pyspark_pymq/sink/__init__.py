"""Writing: ``df.write`` and ``df.writeStream``."""
