"""What the official dashboard and exporter do, through the admin client that they are made of.

There are no jars of the two: their sources say what they call.

Source: rocketmq-dashboard service/impl/*, task/*; rocketmq-exporter MetricsCollectTask.
"""
