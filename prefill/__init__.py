"""The prefill engine: computes prompts, samples the bootstrap token, writes KV to decode engines."""
