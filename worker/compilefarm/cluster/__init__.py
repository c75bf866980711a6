"""The pool on Ray: workers that are actors of a cluster. Nothing else imports Ray."""
