"""Reading: ``spark.read`` and ``spark.readStream``."""
