"""Why a block is traced in its place after all."""


class UnlikeError(Exception):
    """Something is not as it was where it was looked at before."""
