"""OpenAI's request fields that are no fields of ours: which change nothing, and which may say what."""

from typing import Any

# They name the caller, or steer what only OpenAI's own service has.
IGNORED = frozenset(
    {
        "metadata",
        "moderation",
        "parallel_tool_calls",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        "verbosity",
    }
)

# Not supported; these values (and null) ask for what an answer is like anyhow.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "length_penalty": (1,),
    "modalities": (["text"],),
    "priority": (0,),
    "reasoning_effort": ("none",),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "use_beam_search": (False,),
    "web_search_options": (),
}
