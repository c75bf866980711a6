"""Packages: what Dynamo found out about a model in one process, for others whose model is the same."""
