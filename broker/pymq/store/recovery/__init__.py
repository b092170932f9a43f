"""What is done before a store can be used: looking at what is there, and repairing it."""
