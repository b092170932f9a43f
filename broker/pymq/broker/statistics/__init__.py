"""What a broker counts: messages and requests, from its start on, by day, and over windows."""
