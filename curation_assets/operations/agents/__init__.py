"""Read-only questions about pools for programs that are not trusted with more: an MCP server (docs/decisions/0078)."""
