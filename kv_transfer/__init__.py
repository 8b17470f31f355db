"""Paged KV memory: its layout, who owns each page, and how pages reach another process."""
