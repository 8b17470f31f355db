"""The OpenAI-compatible HTTP API and the operator's endpoints beside it."""
