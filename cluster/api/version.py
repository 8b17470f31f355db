"""`GET /version`, as vLLM has it."""

from fastapi import APIRouter

from cluster.version import installed_version

router = APIRouter()


@router.get("/version")
async def get_version() -> dict[str, str]:
    """The server's version."""
    return {"version": installed_version()}
