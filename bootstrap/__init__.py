"""The ground floor: identities, wire messages, errors, and the registry that introduces workers."""
