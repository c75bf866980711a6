"""What travels beside a request, in the metadata of its call. All of it is optional."""

from __future__ import annotations

# For whom the request is made: a word for a team or a deployment. The farm shares its workers evenly among tenants.
TENANT_KEY = "compilefarm-tenant"
