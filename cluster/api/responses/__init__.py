"""`/v1/responses`: OpenAI's newer route, without its memory: every call brings all that it is about."""
