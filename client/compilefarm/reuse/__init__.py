"""Starts without tracing: what Dynamo found is recorded as data, and installed elsewhere once it is seen to hold."""
