"""Several Rays, one after the other, in one test process: each has a token of its own."""


def forget_ray_token() -> None:
    """Have Ray read its token again; else it remembers the first that it read while the process lives."""
    from ray._raylet import AuthenticationTokenLoader  # late, as all of Ray in tests

    AuthenticationTokenLoader.instance().reset_cache()
