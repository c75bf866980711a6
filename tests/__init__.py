"""A package, so that tests which a library brings along under this name are not taken for these."""
