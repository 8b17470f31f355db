"""`pdserve bench`: offer a load to an OpenAI endpoint and say what its clients saw."""
