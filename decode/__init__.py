"""The decode engine: admits handed-off prompts and produces every token after the first."""
